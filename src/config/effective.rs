//! A configuration written out, with the defaults of everything it does not say.

use super::{Config, Storage};
use flexvol_storage::host::Reserve;
use serde::Serialize;
use std::fmt::Write;

/// The text of a configuration that means the same as this one.
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
        match &pool.storage {
            Storage::Loop(images) => {
                put("path", quoted(&images.path));
                put("thin", images.thin.to_string());
                put("reserve", reserve(images.reserve));
            }
            Storage::Dir(directories) => {
                let rules = directories.rules;
                put("path", quoted(&directories.path));
                put("reserve", reserve(rules.reserve));
                put("overcommit", rules.overcommit.to_string());
                put("projects", quoted(rules.projects.to_string()));
            }
            Storage::Lvm(group) => {
                let rules = group.rules;
                put("group", quoted(&group.place.group));
                match &group.place.thin_pool {
                    Some(pool) => {
                        put("thin_pool", quoted(pool));
                        put("overcommit", rules.overcommit.to_string());
                    }
                    None => put("stripes", rules.layout.stripes.to_string()),
                }
                if let Some(size) = rules.layout.stripe_size {
                    put("stripe_size", quoted(size.to_string()));
                }
                put("reserve", reserve(rules.reserve));
                put("deactivate", group.deactivate.to_string());
            }
        }
        put("namespaces", quoted(pool.namespaces));
        if !matches!(pool.storage, Storage::Dir(_)) {
            put("filesystem", quoted(pool.filesystem.as_str()));
        }
        if let Some(largest) = pool.largest {
            put("largest", quoted(largest.to_string()));
        }
        if let Some(keep) = pool.keep_deleted {
            put("keep_deleted", quoted(keep.to_string()));
        }
    }
    text
}

fn reserve(reserve: Reserve) -> String {
    quoted(match reserve {
        Reserve::Percent(percent) => format!("{percent}%"),
        Reserve::Bytes(bytes) => bytes.to_string(),
    })
}

/// JSON's strings are TOML's basic strings: the same quotes, and no escape that TOML lacks.
fn quoted(value: impl Serialize) -> String {
    serde_json::to_string(&value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_as_the_same() {
        for text in [
            "",
            "backend = \"loop\"\nrole = \"controller\"\nattach = true\nnames = \"dotted\"\nlog = \"debug\"\n",
            "growth = \"offline\"\n[pools.a]\npath = \"/a b\\\"\\\\c\"\nthin = true\nreserve = \"3Gi\"\n[pools.b-9]\npath = \"/b\"\nlargest = \"1Ti\"\nkeep_deleted = \"36h\"\nfilesystem = \"ext4\"\nnamespaces = \"any\"\n",
            "[pools]\n",
            "backend = \"lvm\"\nrole = \"controller\"\n[pools]\n",
            "backend = \"dir\"\n",
            "backend = \"dir\"\n[pools.a]\npath = \"/a\"\novercommit = true\nprojects = \"7-9\"\nreserve = \"0%\"\n",
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
