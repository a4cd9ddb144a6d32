//! A wrapper of a program, in the directory that the driver searches first. Removed on drop.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

const FIRST: &str = "/var/lib/flexvol/bin";

pub struct Wrapper(PathBuf);

impl Wrapper {
    /// `before` is text for bash, in which `$@` are the program's arguments.
    pub fn of(name: &str, before: &str) -> Self {
        let program = Path::new(FIRST).join(name);
        let text = format!("#!/bin/bash\n{before}\nexec /usr/sbin/{name} \"$@\"\n");
        fs::create_dir_all(FIRST).unwrap();
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Wrapper(program)
    }
}

impl Drop for Wrapper {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}
