// SPDX-License-Identifier: Apache-2.0
//! The published uSubscription in Rust as a process: `reference-usubscription tcp/127.0.0.1:7447 hpc.vin1`.
//!
//! The crate up-subscription 0.1.3 is a library for up-rust 0.1, and the published Zenoh transport is for up-rust 0.9.
//! `Transport` converts between the two: their messages have the same bytes. In filters of up-rust 0.1 the instance 0
//! is a wildcard. The first line is READY.

use std::{error::Error, sync::Arc};

use async_trait::async_trait;
use protobuf::Message;
use up_rust::UTransport as _;
use up_rust_01::{
    communication::InMemoryRpcClient, LocalUriProvider, UCode, UListener, UMessage, UStatus, UTransport, UUri,
};
use up_subscription::{USubscriptionConfiguration, USubscriptionService};
use up_transport_zenoh::{zenoh_config::Config, UPTransportZenoh};

const ANY_TYPE: u32 = 0xFFFF;

fn converted<T: Message>(from: &impl Message) -> Result<T, UStatus> {
    let bytes = from.write_to_bytes().and_then(|bytes| T::parse_from_bytes(&bytes));
    bytes.map_err(|error| UStatus::fail_with_code(UCode::INVALID_ARGUMENT, error.to_string()))
}

fn filter(from: &UUri) -> Result<up_rust::UUri, UStatus> {
    let mut pattern: up_rust::UUri = converted(from)?;
    if pattern.ue_id == ANY_TYPE {
        pattern.ue_id = u32::MAX;
    }
    Ok(pattern)
}

struct Transport(UPTransportZenoh);

struct Listener(Arc<dyn UListener>);

#[async_trait]
impl up_rust::UListener for Listener {
    async fn on_receive(&self, message: up_rust::UMessage) {
        match converted::<UMessage>(&message) {
            Ok(message) => self.0.on_receive(message).await,
            Err(status) => eprintln!("a message that up-rust 0.1 cannot read: {status:?}"),
        }
    }
}

#[async_trait]
impl UTransport for Transport {
    async fn send(&self, message: UMessage) -> Result<(), UStatus> {
        self.0.send(converted(&message)?).await.map_err(|status| {
            eprintln!("not sent: {status:?}");
            UStatus::fail_with_code(UCode::INTERNAL, status.get_message())
        })
    }

    async fn register_listener(
        &self,
        source: &UUri,
        sink: Option<&UUri>,
        listener: Arc<dyn UListener>,
    ) -> Result<(), UStatus> {
        let sink = sink.map(filter).transpose()?;
        let listener = Arc::new(Listener(listener));
        let done = self.0.register_listener(&filter(source)?, sink.as_ref(), listener).await;
        done.map_err(|status| UStatus::fail_with_code(UCode::INTERNAL, status.get_message()))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments = std::env::args().skip(1).collect::<Vec<_>>();
    let [locator, authority] =
        <[String; 2]>::try_from(arguments).map_err(|_| "expected: LOCATOR AUTHORITY")?;
    let mut config = Config::default();
    config.insert_json5("mode", "\"client\"")?;
    config.insert_json5("connect/endpoints", &format!("[\"{locator}\"]"))?;
    let zenoh = UPTransportZenoh::builder(&authority)?.with_config(config).build().await?;
    let transport: Arc<dyn UTransport> = Arc::new(Transport(zenoh));
    let configuration = USubscriptionConfiguration::create(authority, None, None)?;
    let own: Arc<dyn LocalUriProvider> = configuration.clone();
    let client = Arc::new(InMemoryRpcClient::new(transport.clone(), own).await?);
    let (service, _stopper) = USubscriptionService::run(configuration, transport, client)?;
    USubscriptionService::now_listen(service).await?;
    println!("READY");
    std::future::pending::<()>().await;
    Ok(())
}
