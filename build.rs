//! Has the linker lay the code of callouts together, where it can (docs/decisions/order-of-code.md).

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
};

const SCRIPT: &str = "callouts.ld";

fn main() {
    println!("cargo::rerun-if-changed={SCRIPT}");
    println!("cargo::rerun-if-env-changed=FLEXVOL_LINK_MAP");
    let variable = |name| env::var(name).unwrap_or_default();
    if variable("PROFILE") != "release" {
        return;
    }
    let script = Path::new(&variable("CARGO_MANIFEST_DIR")).join(SCRIPT);
    let argument = format!("-Wl,-T,{}", script.display());
    if links(&argument) {
        println!("cargo::rustc-link-arg-bin=flexvol={argument}");
    }
    if let Ok(map) = env::var("FLEXVOL_LINK_MAP") {
        println!("cargo::rustc-link-arg-bin=flexvol=-Wl,-Map={map}");
    }
}

/// Whether an executable can be linked with this argument: not every linker knows such a script.
fn links(argument: &str) -> bool {
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
            .arg(format!("-Clink-arg={argument}"))
            .arg(source)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
}
