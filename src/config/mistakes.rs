//! Everything that is wrong with a configuration, not only the first of it.

use super::written::Written;
use serde::Deserialize;
use std::{fmt, ops::Range};
use toml::{
    Spanned,
    de::{DeTable, DeValue, Deserializer},
};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Where, counted from 1.
    pub line: usize,
    /// What.
    pub what: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

/// The mistakes in the configuration of the driver called `name`, by line. A text that is no TOML
/// is not looked at any further.
pub fn mistakes(text: &str, name: &str) -> Vec<Mistake> {
    let (mut table, errors) = DeTable::parse_recoverable(text);
    let mut found: Vec<Mistake> = errors
        .iter()
        .map(|error| Mistake {
            line: line(text, error.span().map_or(0, |span| span.start)),
            what: error.message().to_owned(),
        })
        .collect();
    if found.is_empty() {
        let whole = table.clone();
        let mut note = |place: Option<Range<usize>>, what: String| {
            found.push(Mistake {
                line: line(text, place.map_or(0, |place| place.start)),
                what,
            });
        };
        if let Some((written, taken_out)) = readable_part(&mut table, &mut note) {
            for fault in written.complete(name).err().into_iter().flatten() {
                // What was taken out is missing now; that is no second mistake.
                if !taken_out.contains(&fault.path) {
                    note(place_of(whole.get_ref(), &fault.path), fault.what);
                }
            }
        }
    }
    found.sort_by_key(|mistake| mistake.line);
    found.dedup();
    found
}

/// Notes what serde refuses and takes it out, until the rest can be read.
fn readable_part(
    table: &mut Spanned<DeTable<'_>>,
    note: &mut impl FnMut(Option<Range<usize>>, String),
) -> Option<(Written, Vec<Vec<String>>)> {
    let mut taken_out = Vec::new();
    loop {
        let error = match Written::deserialize(Deserializer::from(table.clone())) {
            Ok(written) => return Some((written, taken_out)),
            Err(error) => error,
        };
        let place = error.span();
        let what = error.message();
        let path = place
            .as_ref()
            .and_then(|place| take_out(table.get_mut(), place));
        let what = match path.as_ref().and_then(|path| path.last()) {
            Some(key) if !what.contains(&format!("`{key}`")) => format!("{key}: {what}"),
            _ => what.to_owned(),
        };
        note(place, what);
        taken_out.push(path?);
    }
}

/// Removes the innermost entry that covers `place`, and returns the path of keys to it.
fn take_out(table: &mut DeTable<'_>, place: &Range<usize>) -> Option<Vec<String>> {
    let covers = |span: Range<usize>| span.start <= place.start && place.end <= span.end;
    let key = table
        .iter()
        .find(|(key, value)| covers(key.span()) || covers(value.span()) || holds(value, place))
        .map(|(key, _)| key.clone())?;
    if let Some(DeValue::Table(inner)) = table.get_mut(&key).map(Spanned::get_mut)
        && let Some(mut removed) = take_out(inner, place)
    {
        removed.insert(0, key.into_inner().into_owned());
        return Some(removed);
    }
    table.remove(&key);
    Some(vec![key.into_inner().into_owned()])
}

/// A table that is written in several places (`[pools.a]` … `[pools.b]`) has a place of its own
/// that need not cover its entries.
fn holds(value: &Spanned<DeValue<'_>>, place: &Range<usize>) -> bool {
    let covers = |span: Range<usize>| span.start <= place.start && place.end <= span.end;
    match value.get_ref() {
        DeValue::Table(table) => table
            .iter()
            .any(|(key, value)| covers(key.span()) || covers(value.span()) || holds(value, place)),
        _ => false,
    }
}

/// Where the last key of a path stands that is there.
fn place_of(table: &DeTable<'_>, path: &[String]) -> Option<Range<usize>> {
    let (first, rest) = path.split_first()?;
    let (key, value) = table.iter().find(|(key, _)| key.get_ref() == first)?;
    let inner = match value.get_ref() {
        DeValue::Table(inner) => place_of(inner, rest),
        _ => None,
    };
    inner.or(Some(key.span()))
}

/// The number of the line that a byte stands in, counted from 1.
pub(super) fn line(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn told(text: &str) -> Vec<(usize, String)> {
        mistakes(text, "flexvol")
            .into_iter()
            .map(|mistake| (mistake.line, mistake.what))
            .collect()
    }

    #[test]
    fn a_right_configuration_has_none() {
        let text = "attach = true\n[pools.a]\npath = \"/a\"\nreserve = \"5%\"\nlargest = \"1Ti\"\n";
        assert_eq!(told(text), []);
        assert_eq!(told(""), []);
    }

    #[test]
    fn every_mistake_is_told_with_its_line() {
        let text = concat!(
            "backend = \"loop\"\n",
            "atach = true\n",
            "growth = \"sometimes\"\n",
            "log = 3\n",
            "[pools.a]\n",
            "path = \"relative\"\n",
            "reserve = \"120%\"\n",
            "[pools.b]\n",
            "thin = true\n",
            "[pools.c]\n",
            "path = 7\n",
            "colour = \"red\"\n",
            "[pools.D]\n",
            "path = \"/d\"\n",
        );
        let found = told(text);
        let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [2, 3, 4, 6, 7, 8, 11, 12, 13], "{found:#?}");
        for (line, word) in [
            (2, "atach"),
            (3, "sometimes"),
            (4, "log: invalid type"),
            (6, "absolute"),
            (7, "120%"),
            (8, "path"),
            (11, "path: "),
            (12, "colour"),
            (13, "\"D\""),
        ] {
            let told = found.iter().find(|(at, _)| *at == line).unwrap();
            assert!(told.1.contains(word), "{told:?}");
        }
    }

    #[test]
    fn a_directory_has_no_file_system_of_its_own_and_no_thin_blocks() {
        let found = told(
            "backend = \"dir\"\n[pools.a]\npath = \"/a\"\nthin = true\nfilesystem = \"ext4\"\n[pools.b]\npath = \"/b\"\nprojects = \"9-5\"\n",
        );
        let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [4, 5, 8], "{found:?}");
        assert!(found[0].1.contains("dir has no key thin"), "{found:?}");
        assert!(found[2].1.contains("no range of projects"), "{found:?}");
    }

    #[test]
    fn two_pools_in_one_place_are_told() {
        for (text, line) in [
            (
                "[pools.a]\npath = \"/a\"\n[pools.b]\npath = \"/a/\"\nkeep_deleted = \"7d\"\n",
                4,
            ),
            (
                "backend = \"dir\"\n[pools.b]\npath = \"/a\"\n[pools.a]\npath = \"/a\"\n",
                3,
            ),
            (
                "backend = \"lvm\"\n[pools.a]\ngroup = \"g\"\n[pools.b]\ngroup = \"g\"\n",
                5,
            ),
            (
                "backend = \"lvm\"\n[pools.a]\ngroup = \"g\"\nthin_pool = \"t\"\n[pools.b]\ngroup = \"g\"\nthin_pool = \"t\"\n",
                7,
            ),
        ] {
            let found = told(text);
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].0, line, "{found:?}");
            assert!(found[0].1.contains("\"a\"") && found[0].1.contains("\"b\""));
        }
        let apart = "backend = \"lvm\"\n[pools.a]\ngroup = \"g\"\n[pools.b]\ngroup = \"g\"\nthin_pool = \"t\"\n[pools.c]\ngroup = \"g\"\nthin_pool = \"u\"\n";
        assert_eq!(told(apart), []);
        assert_eq!(
            told("[pools.a]\npath = \"/a\"\n[pools.b]\npath = \"/a/b\"\n"),
            []
        );
    }

    #[test]
    fn a_pool_is_a_table_and_a_word_is_a_text() {
        let found = told(concat!(
            "role = { node = {} }\n",
            "log.info = []\n",
            "pools.a = [\"/a\"]\n",
            "[pools.b]\n",
            "path = \"/b\"\n",
            "namespaces = { any = {} }\n",
            "filesystem = { xfs = {} }\n",
        ));
        let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 2, 3, 6, 7], "{found:?}");
        assert!(found[2].1.contains("a table"), "{found:?}");
        assert!(found[3].1.contains("a string"), "{found:?}");
    }

    #[test]
    fn a_pool_has_room_for_some_volume() {
        let found = told("[pools.a]\npath = \"/a\"\nlargest = \"0\"\n");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (found[0].0, found[0].1.contains("largest must be")),
            (3, true)
        );
    }

    #[test]
    fn a_backend_that_is_not_known_is_told_where_it_is_named() {
        let found = told("attach = 1\nbackend = \"lop\"\n[pools.a]\ncolour = \"red\"\n");
        let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 2, 4], "{found:#?}");
        assert!(found[1].1.contains("lop"), "{found:#?}");
    }

    #[test]
    fn what_is_no_toml_is_told_as_that() {
        let found = told("= 1\nattach = \n");
        let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 2], "{found:?}");
    }

    #[test]
    fn whatever_has_mistakes_is_refused_by_the_driver_and_nothing_else() {
        for text in [
            "",
            "attach = true",
            "pools = 3",
            "[pools]\na = 1",
            "[pools.a]",
            "[pools.a]\npath = \"x\"",
            "[pools.a]\npath = \"/x\"\n[pools.a.b]\nc = 1",
            "pools.a.path = \"/x\"",
            "pools.a = [\"/x\"]",
            "role = { node = {} }",
            "pools = [{ path = \"/x\" }]",
            "pools.a.path = \"/x\"\npools.a.path = \"/y\"",
            "role = [1]",
            "backend = \"lop\"",
            "x",
        ] {
            let refused = Config::parse(text, "flexvol").is_err();
            assert_eq!(refused, !told(text).is_empty(), "{text:?}");
        }
    }
}
