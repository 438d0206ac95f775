//! Tasks of the repository: `cargo run -p xtask -- types` writes the generated structures of `objects`.

use std::process::ExitCode;

use objects::schema::Schema;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments != ["types"] {
        eprintln!("usage: cargo run -p xtask -- types");
        return ExitCode::from(2);
    }
    for (name, text) in xtask::types::generate(Schema::served()) {
        let path = xtask::types::directory().join(name);
        if let Err(error) = std::fs::write(&path, text) {
            eprintln!("cannot write {}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
