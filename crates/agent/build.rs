//! Turns `proto/podresources.proto` into Rust, without a protoc on the machine.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/podresources.proto");
    let description = protox::compile(["proto/podresources.proto"], ["proto"])?;
    tonic_prost_build::configure().build_transport(false).compile_fds(description)?;
    Ok(())
}
