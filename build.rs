//! Makes the linker place the code of callouts together and drop unused code, if it can
//! (docs/decisions/order-of-code.md, docs/decisions/no-unwinding.md).

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
};

/// Linker scripts with the arguments that each needs. Each is tried separately, since not every linker supports
/// them.
const SCRIPTS: [(&str, &[&str]); 2] = [
    ("callouts.ld", &[]),
    ("no-unwinding.ld", &["-Wl,--no-eh-frame-hdr"]),
];

fn main() {
    println!("cargo::rerun-if-changed=linker");
    println!("cargo::rerun-if-env-changed=FLEXVOL_LINK_MAP");
    let variable = |name| env::var(name).unwrap_or_default();
    if variable("PROFILE") != "release" {
        return;
    }
    let directory = Path::new(&variable("CARGO_MANIFEST_DIR")).join("linker");
    for (script, more) in SCRIPTS {
        let mut arguments = vec![format!("-Wl,-T,{}", directory.join(script).display())];
        arguments.extend(more.iter().map(ToString::to_string));
        if links(&arguments) {
            for argument in arguments {
                println!("cargo::rustc-link-arg-bin=flexvol={argument}");
            }
        }
    }
    if let Ok(map) = env::var("FLEXVOL_LINK_MAP") {
        println!("cargo::rustc-link-arg-bin=flexvol=-Wl,-Map={map}");
    }
}

/// Whether an executable can be linked with these arguments.
fn links(arguments: &[String]) -> bool {
    let variable = |name| env::var(name).unwrap_or_default();
    let directory = variable("OUT_DIR");
    let source = Path::new(&directory).join("empty.rs");
    let flags = variable("CARGO_ENCODED_RUSTFLAGS");
    let linker = env::var("RUSTC_LINKER").map(|linker| format!("-Clinker={linker}"));
    fs::write(&source, "fn main() {}").is_ok()
        && Command::new(variable("RUSTC"))
            .args(flags.split('\x1f').filter(|flag| !flag.is_empty()))
            .args(linker)
            .args(["--target", &variable("TARGET"), "--out-dir", &directory])
            .args(
                arguments
                    .iter()
                    .map(|argument| format!("-Clink-arg={argument}")),
            )
            .arg(source)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
}
