//! Events that the client logs.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use cri::v1;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::support::{PATIENCE, Served, State, pair};

/// A subscriber that collects events as lines of text.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<(Level, String)>>>);

impl Events {
    /// Removes and returns the messages of events of at least this severity.
    fn take(&self, least: Level) -> Vec<String> {
        let events = std::mem::take(&mut *self.0.lock().unwrap());
        events.into_iter().filter(|(level, _)| *level <= least).map(|(_, text)| text).collect()
    }
}

/// Renders the fields of an event, the message first.
#[derive(Default)]
struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.0.insert_str(0, &format!("{value:?}")),
            "method" | "code" => {
                let _ = write!(self.0, " {}={value:?}", field.name());
            }
            _ => {}
        }
    }
}

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("cri")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.0.lock().unwrap().push((*event.metadata().level(), fields.0));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[tokio::test]
async fn a_lost_connection_is_logged_once_and_its_return_too() {
    let events = Events::default();
    let _guard = tracing::subscriber::set_default(events.clone());
    let (place, served, client, runtime) = pair(State::default()).await;
    client.call(v1::VersionRequest::default()).await.unwrap();
    assert_eq!(events.take(Level::INFO), Vec::<String>::new());

    served.stop().await.unwrap().unwrap();
    for _ in 0..3 {
        client.call(v1::VersionRequest::default()).await.unwrap_err();
    }
    let lost = ["lost the connection to the runtime", "failed to connect to the runtime"];
    assert_eq!(events.take(Level::WARN), lost);

    let _served = Served::start(&place, runtime, PATIENCE).await;
    client.connected(PATIENCE).await.unwrap();
    assert_eq!(events.take(Level::INFO), ["reconnected to the runtime"]);
}

#[tokio::test]
async fn calls_are_logged_with_method_and_code() {
    let events = Events::default();
    let _guard = tracing::subscriber::set_default(events.clone());
    let (_place, _served, client, _runtime) = pair(State::default()).await;
    client.call(v1::VersionRequest::default()).await.unwrap();
    client.call(v1::StopContainerRequest::default()).await.unwrap_err();
    let calls: Vec<String> =
        events.take(Level::TRACE).into_iter().filter(|text| text.contains("method")).collect();
    assert_eq!(
        calls,
        [
            "called the runtime method=\"Version\"",
            "call of the runtime failed method=\"StopContainer\" code=Unimplemented",
        ]
    );
}
