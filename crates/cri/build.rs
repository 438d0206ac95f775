//! Turns `proto/runtime.proto` into Rust, without a protoc on the machine.
//!
//! Beside the code it leaves the compiled description, `runtime.v1.bin`, in OUT_DIR, from which the
//! tests know what every message is made of.

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
        // Maps in the order of their keys: the same message is the same bytes, every time.
        .btree_map(".")
        // Written by hand, without the secrets.
        .skip_debug([".runtime.v1.AuthConfig"])
        // A runtime of ours answers Unimplemented to what it does not do, as others do.
        .generate_default_stubs(true)
        .compile_fds(description)?;
    Ok(())
}
