//! A configuration with all its defaults written out.

use super::{Config, Keep};
use crate::backends::{quoted, written_reserve};
use std::fmt::Write;

/// Returns the text of an equivalent configuration.
pub fn effective(config: &Config) -> String {
    let mut text = String::new();
    let mut put = |key: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{key} = {value}");
    };
    put("backend", quoted(config.backend.name));
    put("role", quoted(config.role));
    put("attach", config.attach.to_string());
    put("growth", quoted(config.growth));
    put("names", quoted(config.names));
    put("log", quoted(config.log));
    for (name, pool) in &config.pools {
        let _ = write!(text, "\n[pools.{name}]\n");
        let mut put = |key: &str, value: String| {
            let _ = writeln!(text, "{key} = {value}");
        };
        for (key, value) in pool.keys.written() {
            put(key, value);
        }
        let policy = &pool.policy;
        put("namespaces", quoted(policy.namespaces));
        if config.backend.formats {
            put("filesystem", quoted(policy.filesystem.as_str()));
        }
        if let Some(largest) = policy.largest {
            put("largest", quoted(largest.to_string()));
        }
        if let Some(keep) = policy.keep_deleted {
            put("keep_deleted", quoted(Keep::from(keep).to_string()));
        }
        if let Some(most) = policy.keep_at_most {
            put("keep_at_most", written_reserve(most));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_as_the_same() {
        for text in [
            "",
            "backend = \"loop\"\nrole = \"controller\"\nattach = true\nnames = \"dotted\"\nlog = \"debug\"\n",
            "growth = \"offline\"\n[pools.a]\npath = \"/a b\\\"\\\\c\"\nthin = true\nreserve = \"3Gi\"\n[pools.b-9]\npath = \"/b\"\nlargest = \"1Ti\"\nkeep_deleted = \"36h\"\nkeep_at_most = \"10%\"\nfilesystem = \"ext4\"\nnamespaces = \"any\"\n",
            "[pools]\n",
            "backend = \"lvm\"\nrole = \"controller\"\n[pools]\n",
            "backend = \"dir\"\n",
            "backend = \"lvm\"\n[pools.a]\ngroup = \"g\"\nstripes = 2\nstripe_size = \"64Ki\"\nreserve = \"1Gi\"\n[pools.b]\ngroup = \"g\"\nthin_pool = \"t\"\novercommit = true\ndeactivate = true\n",
            "backend = \"dir\"\n[pools.a]\npath = \"/a\"\novercommit = true\nkeep_at_most = \"20Gi\"\nprojects = \"7-9\"\nreserve = \"0%\"\n",
        ] {
            let config = Config::parse(text, "flexvol").unwrap();
            let written = effective(&config);
            let read = Config::parse(&written, "flexvol").unwrap();
            assert_eq!(format!("{read:?}"), format!("{config:?}"));
            assert_eq!(effective(&read), written);
        }
    }

    #[test]
    fn every_default_is_shown() {
        let text = effective(&Config::default_for("flexvol").unwrap());
        assert_eq!(
            text,
            concat!(
                "backend = \"loop\"\n",
                "role = \"node\"\n",
                "attach = false\n",
                "growth = \"online\"\n",
                "names = \"never\"\n",
                "log = \"info\"\n",
                "\n[pools.default]\n",
                "path = \"/var/lib/flexvol/pools/default\"\n",
                "thin = false\n",
                "reserve = \"15%\"\n",
                "namespaces = \"claim\"\n",
                "filesystem = \"xfs\"\n",
                "keep_deleted = \"0s\"\n",
            )
        );
    }
}
