//! The `berth` command: configuration and wiring. It decides nothing; `placement` does.

pub mod backup;
pub mod bench;
mod bind_error;
pub mod cli;
pub mod in_process;
pub mod instance_lock;
pub mod logging;
pub mod machine_source;
pub mod memory;
mod preflight;
pub mod repair;
pub mod server;
pub mod tasks;
pub mod terminal;
pub mod up;
