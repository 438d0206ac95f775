//! What the agent's server is told: [`Answers`], from the board, the configuration and the counters.

use std::sync::Arc;

use serde_json::Value;

use crate::hands::Hands;
use crate::server;

/// Answers in the agent's name.
#[derive(Debug)]
pub(super) struct Answers {
    hands: Arc<Hands>,
    configuration: Value,
}

impl Answers {
    pub(super) fn new(hands: Arc<Hands>, configuration: Value) -> Answers {
        Answers { hands, configuration }
    }
}

impl server::Answers for Answers {
    fn pods(&self) -> Vec<Value> {
        self.hands.board.pods()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Value> {
        self.hands.board.pod(namespace, name)
    }

    fn sandbox(&self, uid: &str) -> Option<String> {
        self.hands.board.sandbox(uid)
    }

    fn configuration(&self) -> Value {
        self.configuration.clone()
    }

    fn metrics(&self) -> String {
        self.hands.counters.registry.render()
    }

    fn complaint(&self) -> Option<String> {
        let silent = self.hands.capabilities.borrow().is_none();
        silent.then(|| "the container runtime has not answered yet".to_owned())
    }
}
