//! Options of a volume: strings in the protocol, the vendor's own type in the driver.

use crate::{Error, ErrorKind, Result};
use serde::{
    Deserializer,
    de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, MapAccess, Visitor},
    forward_to_deserialize_any,
};
use std::{
    collections::{BTreeMap, btree_map},
    fmt,
};

/// The options that the author of a volume wrote, without the keys that Kubernetes adds.
///
/// Callers write every value as a string, `"true"` and `"10"` included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(BTreeMap<String, String>);

impl Options {
    /// Deserializes the options into a plain struct: strings become the fields' types (`bool`, numbers,
    /// [`Bytes`](crate::Bytes) from `10Gi`, unit enums, `Option`s of these).
    ///
    /// A key that is no field of `T` is refused even if `T` allows unknown fields, so that a misspelt option is
    /// never silently replaced by its default.
    ///
    /// ```
    /// # use flexvol_sdk::{Bytes, Options};
    /// #[derive(serde::Deserialize)]
    /// struct Disk {
    ///     pool: String,
    ///     #[serde(default)]
    ///     thin: bool,
    ///     reserve: Option<Bytes>,
    /// }
    /// let options = Options::from_iter([("pool", "fast"), ("thin", "true"), ("reserve", "1Gi")]);
    /// let disk: Disk = options.parse()?;
    /// assert_eq!((disk.pool.as_str(), disk.thin), ("fast", true));
    /// assert_eq!(disk.reserve, Some(Bytes::GIB));
    /// # Ok::<(), flexvol_sdk::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], with the option's name and never its value.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        T::deserialize(Map(&self.0)).map_err(|Problem(text)| Error::new(ErrorKind::Invalid, text))
    }

    /// Returns one option's value.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Iterates over all options, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether there are no options.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes and returns one option.
    pub fn take(&mut self, key: &str) -> Option<String> {
        self.0.remove(key)
    }

    /// Returns the options except `keys`, for layers that read their own and pass on the rest.
    #[must_use]
    pub fn without(&self, keys: &[&str]) -> Options {
        self.iter().filter(|(key, _)| !keys.contains(key)).collect()
    }
}

impl From<BTreeMap<String, String>> for Options {
    fn from(options: BTreeMap<String, String>) -> Self {
        Options(options)
    }
}

impl From<Options> for BTreeMap<String, String> {
    fn from(options: Options) -> Self {
        options.0
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Options {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(options: I) -> Self {
        Options(
            options
                .into_iter()
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
        )
    }
}

/// A deserialization error. Unlike serde's own messages it does not quote the value.
#[derive(Debug)]
struct Problem(String);

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Problem {}

impl de::Error for Problem {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Problem(message.to_string())
    }

    fn invalid_type(_: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Problem(format!("expected {expected}"))
    }

    fn invalid_value(_: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Problem(format!("expected {expected}"))
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Problem(format!("expected one of {}", expected.join(", ")))
    }

    fn missing_field(field: &'static str) -> Self {
        Problem(format!("option {field:?} is missing"))
    }
}

/// All options, as a struct and nothing else: only a struct lists the keys that it knows.
struct Map<'a>(&'a BTreeMap<String, String>);

impl<'de> Deserializer<'de> for Map<'_> {
    type Error = Problem;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        if let Some(key) = self.0.keys().find(|key| !fields.contains(&key.as_str())) {
            let known = match fields {
                [] => "there are none".to_owned(),
                fields => format!("known are {}", fields.join(", ")),
            };
            return Err(Problem(format!("unknown option {key:?}; {known}")));
        }
        visitor.visit_map(Access {
            entries: self.0.iter(),
            entry: None,
        })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Problem> {
        Err(Problem(
            "an options type is a plain struct without flattened fields".to_owned(),
        ))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct Access<'a> {
    entries: btree_map::Iter<'a, String, String>,
    entry: Option<(&'a str, &'a str)>,
}

impl<'de> MapAccess<'de> for Access<'_> {
    type Error = Problem;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Problem> {
        self.entry = self
            .entries
            .next()
            .map(|(key, value)| (key.as_str(), value.as_str()));
        self.entry
            .map(|(key, _)| seed.deserialize(key.into_deserializer()))
            .transpose()
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Problem> {
        let Some((key, value)) = self.entry.take() else {
            return Err(Problem("a value was read before its key".to_owned()));
        };
        seed.deserialize(Value(value))
            .map_err(|Problem(why)| Problem(format!("option {key:?}: {why}")))
    }
}

/// One value: a string that deserializes into the type that is requested.
struct Value<'a>(&'a str);

macro_rules! numbers {
    ($($method:ident $visit:ident $type:ty),* $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
            let number = self.0.strip_prefix('+').is_none().then(|| self.0.parse::<$type>());
            match number {
                Some(Ok(number)) => visitor.$visit(number),
                _ => Err(Problem(format!(
                    "expected a number ({})",
                    stringify!($type)
                ))),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Value<'_> {
    type Error = Problem;

    numbers! {
        deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32, deserialize_i64 visit_i64 i64,
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32, deserialize_u64 visit_u64 u64,
        deserialize_f32 visit_f32 f32, deserialize_f64 visit_f64 f64,
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match self.0 {
            "true" => visitor.visit_bool(true),
            "false" => visitor.visit_bool(false),
            _ => Err(Problem("expected true or false".to_owned())),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Problem> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        visitor.visit_enum(self.0.into_deserializer())
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_str(self.0)
    }

    forward_to_deserialize_any! {
        i128 u128 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct
        identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bytes;
    use serde::Deserialize;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase", default)]
    struct Mine {
        pool: String,
        thin: bool,
        stripes: Option<u32>,
        layout: Layout,
        #[serde(alias = "size")]
        max_size: Bytes,
        offset: i64,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "lowercase")]
    enum Layout {
        #[default]
        Linear,
        Striped,
    }

    fn parse(options: &[(&str, &str)]) -> Result<Mine> {
        options.iter().copied().collect::<Options>().parse()
    }

    #[test]
    fn strings_become_the_types_of_the_fields() {
        let options = [
            ("pool", "fast"),
            ("thin", "true"),
            ("stripes", "2"),
            ("layout", "striped"),
            ("size", "1.5Gi"),
            ("offset", "-3"),
        ];
        let expected = Mine {
            pool: "fast".to_owned(),
            thin: true,
            stripes: Some(2),
            layout: Layout::Striped,
            max_size: Bytes(3 << 29),
            offset: -3,
        };
        assert_eq!(parse(&options).unwrap(), expected);
        assert_eq!(parse(&[]).unwrap(), Mine::default());
    }

    #[test]
    fn what_is_wrong_is_named_and_its_value_is_not() {
        for (key, value) in [
            ("hunter", "hunter2"),
            ("thin", "hunter2"),
            ("stripes", "hunter2"),
            ("stripes", "+1"),
            ("stripes", "-1"),
            ("stripes", "4294967296"),
            ("layout", "hunter2"),
            ("offset", "1.5"),
            ("thin", "True"),
            ("maxSize", "hunter2"),
            ("maxSize", "-7"),
            ("maxSize", "17Ei"),
        ] {
            let error = parse(&[(key, value)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let text = error.to_string();
            assert!(text.contains(&format!("{key:?}")), "{text}");
            assert!(!text.contains(value), "{text}");
        }
    }

    #[test]
    fn a_missing_option_is_named() {
        #[derive(Debug, Deserialize)]
        struct Needs {
            #[serde(rename = "pool")]
            _pool: String,
        }
        let error = Options::default().parse::<Needs>().unwrap_err();
        assert_eq!(error.to_string(), "option \"pool\" is missing");
    }

    #[test]
    fn a_type_that_would_swallow_unknown_keys_is_refused() {
        #[derive(Debug, Deserialize)]
        struct Swallows {
            #[serde(flatten)]
            _rest: BTreeMap<String, String>,
        }
        let options = Options::from_iter([("a", "1")]);
        assert!(options.parse::<Swallows>().is_err());
        assert!(options.parse::<BTreeMap<String, String>>().is_err());
    }

    #[test]
    fn layers_split_the_options_between_them() {
        let mut options = Options::from_iter([("a", "1"), ("b", "2"), ("c", "3")]);
        assert_eq!(options.without(&["b"]).iter().count(), 2);
        assert_eq!(options.take("a").as_deref(), Some("1"));
        assert_eq!((options.get("a"), options.get("b")), (None, Some("2")));
    }
}
