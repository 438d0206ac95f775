//! Generates Rust from `proto/runtime.proto` without a protoc on the machine.
//!
//! It also writes the compiled descriptor, `runtime.v1.bin`, to OUT_DIR. The tests read the fields
//! of every message from it.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/runtime.proto");
    let description = protox::compile(["proto/runtime.proto"], ["proto"])?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    fs::write(out.join("runtime.v1.bin"), description.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_transport(false)
        // Maps are encoded in key order, so equal messages have equal bytes.
        .btree_map(".")
        // Implemented by hand, to leave out the secrets.
        .skip_debug([".runtime.v1.AuthConfig"])
        // Our runtimes return Unimplemented for calls that they do not support, as other runtimes
        // do.
        .generate_default_stubs(true)
        .compile_fds(description)?;
    Ok(())
}
