//! Lines of a mount table, one at a time.

use std::{
    io::{self, Read},
    ops::ControlFlow,
};

/// Maximum length kept of a field: the longest path for a system call (`PATH_MAX`) with each byte escaped. Longer paths
/// are possible; the fields after them are still read.
const FIELD: usize = 4 * 4096;

/// Maximum length kept of a line: all fields that the kernel writes, at their maximum length.
const LINE: usize = 12 * FIELD;

/// Passes each non-empty line to `see` until that returns `Break`. Calls `goes_on` before each read; its error ends the
/// reading.
pub(super) fn each(
    mut table: impl Read,
    mut goes_on: impl FnMut() -> io::Result<()>,
    mut see: impl FnMut(&[u8]) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    let mut piece = vec![0; FIELD];
    let (mut line, mut field) = (Vec::new(), 0);
    loop {
        goes_on()?;
        let read = match table.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        for &byte in &piece[..read] {
            if byte == b'\n' {
                if !line.is_empty() && see(&line).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                line.clear();
                field = 0;
                continue;
            }
            field = if byte == b' ' { 0 } else { field + 1 };
            if field <= FIELD && line.len() < LINE {
                line.push(byte);
            }
        }
    }
    Ok(match line.is_empty() {
        true => ControlFlow::Continue(()),
        false => see(&line),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mountinfo::Line;
    use proptest::prelude::*;

    fn lines(text: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        let all = each(
            text,
            || Ok(()),
            |line| {
                lines.push(line.to_vec());
                ControlFlow::Continue(())
            },
        );
        assert!(all.unwrap().is_continue());
        lines
    }

    #[test]
    fn of_a_field_that_is_too_long_only_its_end_is_lost() {
        let deep = "/d".repeat(FIELD);
        let text = format!("36 35 0:44 {deep} {deep} rw - btrfs /dev/sda rw\n37 36 98:1 / /x ro");
        let lines = lines(text.as_bytes());
        assert_eq!(lines.len(), 2);
        let mount = Line::read(&lines[0]).unwrap().mount();
        assert_eq!(mount.root.as_os_str().len(), FIELD);
        assert_eq!((&*mount.filesystem, mount.parent), ("btrfs", 35));
        assert_eq!(Line::read(&lines[1]).unwrap().id, 37);
    }

    #[test]
    fn a_line_takes_no_more_memory_than_the_longest() {
        let lines = lines("a ".repeat(LINE).as_bytes());
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].len(), LINE);
    }

    #[test]
    fn what_was_found_ends_it_and_so_does_an_error() {
        let text = &b"a\nb\nc\n"[..];
        let mut seen = 0;
        let found = each(
            text,
            || Ok(()),
            |line| {
                seen += 1;
                match line {
                    b"b" => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                }
            },
        );
        assert!(found.unwrap().is_break());
        assert_eq!(seen, 2);
        let late = || Err(io::ErrorKind::TimedOut.into());
        assert!(each(text, late, |_| ControlFlow::Continue(())).is_err());
    }

    proptest! {
        #[test]
        fn lines_are_those_of_the_text(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let split = text.split(|&byte| byte == b'\n');
            let expected: Vec<Vec<u8>> = split.filter(|it| !it.is_empty()).map(<[u8]>::to_vec).collect();
            prop_assert_eq!(lines(&text), expected);
        }
    }
}
