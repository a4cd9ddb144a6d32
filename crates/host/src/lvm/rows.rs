//! Parsing of LVM's reports: JSON in which every value is a string.

use flexvol_sdk::{Error, ErrorKind, Result};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The columns of one row.
pub(super) type Columns = BTreeMap<String, String>;

/// A row of a report, made from the columns that were requested.
pub(super) trait Row: Sized {
    /// Makes a row of the columns.
    ///
    /// # Errors
    /// Text for the log, if a column is missing or malformed.
    fn of(columns: Columns) -> Result<Self, String>;
}

/// The value of a column.
pub(super) trait Column: Sized {
    fn of(text: String) -> Result<Self, String>;
}

impl Column for String {
    fn of(text: String) -> Result<Self, String> {
        Ok(text)
    }
}

impl Column for u64 {
    fn of(text: String) -> Result<Self, String> {
        let number = text.parse();
        number.map_err(|_| format!("{text:?} is not a number of bytes"))
    }
}

/// Removes a column and parses it.
pub(super) fn take<C: Column>(columns: &mut Columns, name: &str) -> Result<C, String> {
    let text = columns.remove(name);
    C::of(text.ok_or_else(|| format!("there is no {name}"))?)
}

/// Declares a row whose fields are the columns of the same names, and `FIELDS`, the argument of `-o`.
macro_rules! row {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $row:ident {
            $first_visibility:vis $first:ident: $first_type:ty,
            $($field_visibility:vis $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, PartialEq, Eq)]
        $visibility struct $row {
            $first_visibility $first: $first_type,
            $($field_visibility $field: $type,)*
        }

        impl $row {
            $visibility const FIELDS: &str = concat!(stringify!($first) $(, ",", stringify!($field))*);
        }

        impl $crate::lvm::rows::Row for $row {
            fn of(mut columns: $crate::lvm::rows::Columns) -> Result<Self, String> {
                Ok($row {
                    $first: $crate::lvm::rows::take(&mut columns, stringify!($first))?,
                    $($field: $crate::lvm::rows::take(&mut columns, stringify!($field))?,)*
                })
            }
        }
    };
}
pub(super) use row;

/// A report as LVM groups it: lists of rows by their kind, `lv`, `vg`, `pv` …
type Report = BTreeMap<String, Vec<Columns>>;

/// All reports of one LVM command.
pub(super) struct Reports(Vec<Report>);

impl Reports {
    /// Parses the output of a command.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`] if it is not what LVM prints.
    pub(super) fn parse(json: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Whole {
            report: Vec<Report>,
        }
        // Paths of disks need not be UTF-8.
        let json = String::from_utf8_lossy(json);
        match serde_json::from_str::<Whole>(&json) {
            Ok(whole) => Ok(Reports(whole.report)),
            Err(error) => Err(not_understood(error.to_string())),
        }
    }

    /// Removes the rows of one kind.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`] if a requested column is missing or malformed.
    pub(super) fn take<R: Row>(&mut self, kind: &str) -> Result<Vec<R>> {
        read(self.0.iter_mut().filter_map(|report| report.remove(kind)))
    }
}

/// Returns the rows of a report that has one kind of rows.
///
/// # Errors
/// As for [`Reports::take`].
pub(super) fn rows<R: Row>(json: &[u8]) -> Result<Vec<R>> {
    let Reports(reports) = Reports::parse(json)?;
    if reports.iter().any(|report| report.len() != 1) {
        return Err(not_understood(
            "a report is not of one kind of things".to_owned(),
        ));
    }
    read(reports.into_iter().flat_map(Report::into_values))
}

fn read<R: Row>(rows: impl Iterator<Item = Vec<Columns>>) -> Result<Vec<R>> {
    rows.flatten()
        .map(|columns| R::of(columns).map_err(not_understood))
        .collect()
}

fn not_understood(why: String) -> Error {
    Error::new(
        ErrorKind::Storage,
        "cannot understand what lvm reports of the volume group",
    )
    .because(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    row! {
        struct Disk {
            pv_name: String,
            pv_free: u64,
        }
    }

    #[test]
    fn a_row_is_asked_for_by_its_columns_and_has_all_of_them() {
        assert_eq!(Disk::FIELDS, "pv_name,pv_free");
        let report = |row: &str| format!(r#"{{"report":[{{"pv":[{{{row}}}]}}]}}"#);
        let json = report(r#""pv_free":"512", "pv_name":"/dev/a", "other":"""#);
        let [disk] = &rows::<Disk>(json.as_bytes()).unwrap()[..] else {
            panic!("one row is one disk");
        };
        assert_eq!((disk.pv_name.as_str(), disk.pv_free), ("/dev/a", 512));
        for (row, why) in [
            (r#""pv_free":"512""#, "there is no pv_name"),
            (
                r#""pv_free":"1.00m", "pv_name":"""#,
                r#""1.00m" is not a number of bytes"#,
            ),
        ] {
            let error = rows::<Disk>(report(row).as_bytes()).unwrap_err();
            assert!(error.report().contains(why), "{error:?}");
        }
    }

    #[test]
    fn rows_of_several_kinds_are_taken_by_kind_alone() {
        let json =
            br#"{"report":[{"vg":[], "pv":[{"pv_name":"a", "pv_free":"1"}]}, {}], "log":[{}]}"#;
        assert!(rows::<Disk>(json).is_err());
        let mut reports = Reports::parse(json).unwrap();
        assert_eq!(reports.take::<Disk>("pv").unwrap().len(), 1);
        assert!(reports.take::<Disk>("lv").unwrap().is_empty());
    }
}
