// SPDX-License-Identifier: Apache-2.0
//! Subscribe and call: `use tcp/127.0.0.1:7448 cloud //hpc.vin1/A001/1/0`. The last is the provider.

use std::{error::Error, str::FromStr, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::sync::mpsc::{unbounded_channel, UnboundedSender};
use tokio::time::timeout;
use up_rust::communication::{CallOptions, InMemoryRpcClient, RpcClient, UPayload};
use up_rust::core::usubscription::{SubscriptionRequest, SubscriptionResponse};
use up_rust::{
    LocalUriProvider, StaticUriProvider, UListener, UMessage, UPayloadFormat, UTransport, UUri,
};
use up_transport_zenoh::{zenoh_config::Config, UPTransportZenoh};

struct Received(UnboundedSender<String>);

#[async_trait]
impl UListener for Received {
    async fn on_receive(&self, message: UMessage) {
        let data = message.payload.unwrap_or_default();
        let _ = self.0.send(String::from_utf8_lossy(&data).into_owned());
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments = std::env::args().skip(1).collect::<Vec<_>>();
    let [locator, authority, provider] = <[String; 3]>::try_from(arguments)
        .map_err(|_| "expected: use LOCATOR AUTHORITY PROVIDER")?;
    let provider = UUri::from_str(&provider)?;
    let at = |resource_id| UUri { resource_id, ..provider.clone() };
    let mut config = Config::default();
    config.insert_json5("mode", "\"client\"")?;
    config.insert_json5("connect/endpoints", &format!("[\"{locator}\"]"))?;
    let me = Arc::new(StaticUriProvider::new(&authority, 0xB001, 1));
    let zenoh = UPTransportZenoh::builder(me.get_authority())?.with_config(config).build().await?;
    let transport: Arc<dyn UTransport> = Arc::new(zenoh);
    let rpc: Arc<dyn RpcClient> =
        Arc::new(InMemoryRpcClient::new(transport.clone(), me.clone()).await?);
    let wait = Duration::from_secs(10);

    let (sender, mut events) = unbounded_channel();
    transport.register_listener(&at(0x8001), None, Arc::new(Received(sender))).await?;
    // RpcClientUSubscription of up-rust asks the uSubscription of its own authority. Here it is that of the gateway.
    let subscribe = UUri::from_str("//hpc.vin1/0/3/1")?;
    let request = SubscriptionRequest { topic: Some(at(0x8001)).into(), ..Default::default() };
    let options = CallOptions::for_rpc_request(5_000, None, None, None);
    rpc.invoke_proto_method::<_, SubscriptionResponse>(subscribe, options.clone(), request).await?;
    println!("event: {}", timeout(wait, events.recv()).await?.unwrap_or_default());

    let (sender, mut notifications) = unbounded_channel();
    let source = me.get_source_uri();
    transport.register_listener(&at(0x8002), Some(&source), Arc::new(Received(sender))).await?;
    let payload = UPayload::new("warm", UPayloadFormat::UPAYLOAD_FORMAT_TEXT);
    let answer = rpc.invoke_method(at(1), options, Some(payload)).await?;
    let data = answer.map(|each| each.payload()).unwrap_or_default();
    println!("answer: {}", String::from_utf8_lossy(&data));
    if provider.authority_name != "chassis" {
        // SOME/IP has no notifications
        println!("notification: {}", timeout(wait, notifications.recv()).await?.unwrap_or_default());
    }
    Ok(())
}
