//! A configuration written out, with the defaults of everything it does not say.

use super::Config;
use flexvol_storage::host::Reserve;
use serde::Serialize;
use std::fmt::Write;

/// The text of a configuration that means the same as this one does for the driver called `name`.
pub fn effective(config: &Config, name: &str) -> String {
    let mut text = String::new();
    let mut put = |key: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{key} = {value}");
    };
    put("backend", quoted(config.backend(name)));
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
        put("path", quoted(&pool.path));
        put("thin", pool.thin.to_string());
        put(
            "reserve",
            quoted(match pool.reserve {
                Reserve::Percent(percent) => format!("{percent}%"),
                Reserve::Bytes(bytes) => bytes.to_string(),
            }),
        );
        put("namespaces", quoted(pool.namespaces));
        put("filesystem", quoted(pool.filesystem.as_str()));
        if let Some(largest) = pool.largest {
            put("largest", quoted(largest.to_string()));
        }
    }
    text
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
            "growth = \"offline\"\n[pools.a]\npath = \"/a b\\\"\\\\c\"\nthin = true\nreserve = \"3Gi\"\n[pools.b-9]\npath = \"/b\"\nlargest = \"1Ti\"\nfilesystem = \"ext4\"\nnamespaces = \"any\"\n",
        ] {
            let config = Config::parse(text).unwrap();
            let written = effective(&config, "flexvol");
            let read = Config::parse(&written).unwrap();
            assert_eq!(
                format!("{read:?}").replace("Some(\"loop\")", "None"),
                format!("{config:?}").replace("Some(\"loop\")", "None")
            );
            assert_eq!(effective(&read, "flexvol"), written);
        }
    }

    #[test]
    fn every_default_is_shown() {
        let text = effective(&Config::default(), "flexvol");
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
            )
        );
    }
}
