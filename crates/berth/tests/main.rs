//! Integration tests of the binary's library.

#![allow(clippy::panic, clippy::unwrap_used)]

#[path = "cases/agent.rs"]
mod agent_start;
#[path = "cases/backup.rs"]
mod backup;
#[path = "cases/certificates.rs"]
mod certificates;
#[path = "cases/controllers.rs"]
mod controllers;
#[path = "cases/logs.rs"]
mod logs;
#[path = "cases/plan.rs"]
mod plan;
#[path = "cases/plugins.rs"]
mod plugins;
#[path = "cases/remote.rs"]
mod remote;
#[path = "cases/state.rs"]
mod state;
#[path = "cases/storage.rs"]
mod storage;
#[path = "cases/tools.rs"]
mod tools;
#[path = "cases/topology.rs"]
mod topology;
