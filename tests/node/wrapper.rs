//! A program that does something before the one of its name, where the driver looks first, until this is dropped.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

const FIRST: &str = "/var/lib/flexvol/bin";

pub struct Wrapper(PathBuf);

impl Wrapper {
    /// `before` is text of bash, in which `$@` is what the program is called with.
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
