//! Has the linker lay the code of callouts together and leave away what nobody runs, where it can
//! (docs/decisions/order-of-code.md, docs/decisions/no-unwinding.md).

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
};

/// What the linker is asked for; each alone, because not every linker knows them.
const WISHES: [&[&str]; 2] = [
    &["-Wl,-T,linker/callouts.ld"],
    &["-Wl,-T,linker/no-unwinding.ld", "-Wl,--no-eh-frame-hdr"],
];

fn main() {
    println!("cargo::rerun-if-changed=linker");
    println!("cargo::rerun-if-env-changed=FLEXVOL_LINK_MAP");
    let variable = |name| env::var(name).unwrap_or_default();
    if variable("PROFILE") != "release" {
        return;
    }
    let directory = variable("CARGO_MANIFEST_DIR");
    for wish in WISHES {
        let arguments: Vec<_> = wish
            .iter()
            .map(|argument| absolute(argument, &directory))
            .collect();
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

fn absolute(argument: &str, directory: &str) -> String {
    match argument.strip_prefix("-Wl,-T,") {
        Some(script) => format!("-Wl,-T,{}", Path::new(directory).join(script).display()),
        None => argument.to_owned(),
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
