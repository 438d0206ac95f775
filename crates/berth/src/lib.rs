//! The `berth` command: configuration and wiring. It decides nothing; `placement` does.

pub mod backup;
pub mod cli;
pub mod in_process;
mod listening;
pub mod load;
pub mod logging;
pub mod machine_source;
pub mod memory;
pub mod presence;
pub mod repair;
pub mod server;
pub mod terminal;
pub mod up;
