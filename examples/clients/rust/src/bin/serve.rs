// SPDX-License-Identifier: Apache-2.0
//! Publish, answer calls, notify each caller: `serve tcp/127.0.0.1:7447 hpc.vin1`, until Ctrl-C.

use std::{error::Error, sync::Arc, time::Duration};

use async_trait::async_trait;
use up_rust::communication::{
    CallOptions, InMemoryRpcServer, Notifier, Publisher, RequestHandler, RpcServer,
    ServiceInvocationError, SimpleNotifier, SimplePublisher, UPayload,
};
use up_rust::{LocalUriProvider, StaticUriProvider, UAttributes, UPayloadFormat, UTransport};
use up_transport_zenoh::{zenoh_config::Config, UPTransportZenoh};

fn text(data: impl Into<String>) -> Option<UPayload> {
    Some(UPayload::new(data.into(), UPayloadFormat::UPAYLOAD_FORMAT_TEXT))
}

struct Upper(SimpleNotifier);

#[async_trait]
impl RequestHandler for Upper {
    async fn handle_request(
        &self,
        _resource_id: u16,
        attributes: &UAttributes,
        payload: Option<UPayload>,
    ) -> Result<Option<UPayload>, ServiceInvocationError> {
        let options = CallOptions::for_notification(None, None, None);
        let notified = self.0.notify(0x8002, &attributes.source, options, text("called")).await;
        notified.map_err(|error| ServiceInvocationError::Internal(error.to_string()))?;
        let data = payload.map(|each| each.payload().to_ascii_uppercase()).unwrap_or_default();
        Ok(Some(UPayload::new(data, UPayloadFormat::UPAYLOAD_FORMAT_TEXT)))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let [locator, authority] = <[String; 2]>::try_from(std::env::args().skip(1).collect::<Vec<_>>())
        .map_err(|_| "expected: serve LOCATOR AUTHORITY")?;
    let mut config = Config::default();
    config.insert_json5("mode", "\"client\"")?;
    config.insert_json5("connect/endpoints", &format!("[\"{locator}\"]"))?;
    let me = Arc::new(StaticUriProvider::new(&authority, 0xA001, 1));
    let zenoh = UPTransportZenoh::builder(me.get_authority())?.with_config(config).build().await?;
    let transport: Arc<dyn UTransport> = Arc::new(zenoh);
    let server = InMemoryRpcServer::new(transport.clone(), me.clone());
    let upper = Arc::new(Upper(SimpleNotifier::new(transport.clone(), me.clone())));
    server.register_endpoint(None, 1, upper).await?;
    println!("serving");
    let publisher = SimplePublisher::new(transport, me);
    loop {
        let options = CallOptions::for_publish(None, None, None);
        publisher.publish(0x8001, options, text("21.5")).await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
