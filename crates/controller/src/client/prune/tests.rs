//! Compares the pruner with a reference that applies the rules to a parsed value, at every chunk boundary.

use super::{keep::begins, *};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

static ANY: Keep = Keep::Members(&[
    ("a", Keep::WORD),
    ("b", Keep::All),
    ("c", Keep::Begins("x", &Keep::WORD)),
    ("y", Keep::Named(|name| name.ends_with(b"a"), &Keep::WORD)),
    ("d", Keep::But(&["a", "b"])),
    (
        "e",
        Keep::Each(&Keep::Members(&[("a", Keep::WORD), ("e", Keep::All)])),
    ),
    ("xa", Keep::Words(&["x", "xx"])),
]);

static SUM: Keep = Keep::Members(&[("a", Keep::Checksum), ("b", Keep::WORD)]);

/// Prunes a parsed value. Returns `None` if nothing is kept.
fn reference(value: &Value, keep: &'static Keep) -> Option<Value> {
    let short = |text: &str| {
        let written = json!(text).to_string().len() - 2;
        json!(if written <= MAX_LENGTH { text } else { "?" })
    };
    let pick = |object: &Map<String, Value>, of: &dyn Fn(&str) -> Option<&'static Keep>| {
        let kept = object.iter().filter_map(|(name, value)| {
            let value = reference(value, of(name)?)?;
            Some((name.clone(), value))
        });
        Value::Object(kept.collect())
    };
    Some(match (keep, value) {
        (Keep::All, value) => value.clone(),
        (Keep::Text(_), Value::Array(_) | Value::Object(_)) => return None,
        (_, Value::String(text)) => short(text),
        (Keep::But(names), Value::Object(object)) => pick(object, &|name| {
            (!names.contains(&name)).then_some(&Keep::All)
        }),
        (Keep::Members(members), Value::Object(object)) => pick(object, &|name| {
            let found = members.iter().find(|(known, _)| *known == name);
            found.map(|(_, keep)| keep)
        }),
        (Keep::Begins(head, keep), Value::Object(object)) => pick(object, &|name| {
            begins(name.as_bytes(), head).then_some(*keep)
        }),
        (Keep::Named(is_kept, keep), Value::Object(object)) => {
            pick(object, &|name| is_kept(name.as_bytes()).then_some(*keep))
        }
        (Keep::Each(keep), Value::Object(object)) => pick(object, &|_| Some(*keep)),
        (Keep::Words(_), Value::Object(_)) => json!({}),
        (Keep::Each(keep), Value::Array(all)) => {
            let kept = all.iter().filter_map(|value| reference(value, keep));
            kept.collect()
        }
        (Keep::Words(words), Value::Array(all)) => {
            let kept = all.iter().filter(|value| {
                let text = value.as_str();
                text.is_none_or(|text| words.contains(&text))
            });
            kept.filter_map(|value| reference(value, keep)).collect()
        }
        (_, Value::Array(all)) => {
            let kept = all.iter().filter_map(|value| reference(value, keep));
            kept.collect()
        }
        (_, bare) => bare.clone(),
    })
}

fn values() -> impl Strategy<Value = Value> {
    let name = || {
        prop_oneof![
            "[a-e]",
            "[xyz][a-c]",
            Just("xa".to_owned()),
            Just("\"\\{".to_owned())
        ]
    };
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "x{1,3}".prop_map(Value::from),
        "[xy\\\\\"{}:,\\[\\]ä\u{1}]{0,5}".prop_map(Value::from),
        Just(Value::from("x".repeat(MAX_LENGTH + 1))),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((name(), inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_kept_does_not_depend_on_where_an_answer_is_cut(
        (all, size, pretty) in (prop::collection::vec(values(), 1..4), 1usize..40, any::<bool>())
    ) {
        let mut text = String::new();
        for value in &all {
            text += &if pretty { format!("{value:#}") } else { value.to_string() };
            text.push('\n');
        }
        let mut prune = Prune::new(&ANY);
        let parts = text.as_bytes().chunks(size);
        let kept: Vec<u8> = parts.flat_map(|part| prune.next(part).unwrap()).collect();
        let read = serde_json::Deserializer::from_slice(&kept).into_iter();
        let read: Result<Vec<Value>, _> = read.collect();
        let wanted = all.iter().filter_map(|value| reference(value, &ANY));
        prop_assert_eq!(read.unwrap(), wanted.collect::<Vec<_>>());
    }

    #[test]
    fn a_checksum_is_that_of_the_whole_object_however_it_is_written_and_cut(
        (members, size, escaped) in
            (prop::collection::btree_map("[a-c<\u{1}ä\\\\\"]{1,3}", "[xy\\\\\"{}:,\n<ä]{0,5}", 0..6), 1usize..40, any::<bool>())
    ) {
        let mut text = json!({"a": members, "b": members.len()}).to_string();
        if escaped {
            text = text.replace('<', "\\u003c").replace("ä", "\\u00E4");
        }
        let mut prune = Prune::new(&SUM);
        let parts = text.as_bytes().chunks(size);
        let kept: Vec<u8> = parts.flat_map(|part| prune.next(part).unwrap()).collect();
        let read: Value = serde_json::from_slice(&kept).unwrap();
        prop_assert_eq!(&read["b"], &json!(members.len()));
        let read: BTreeMap<String, String> = serde_json::from_value(read["a"].clone()).unwrap();
        prop_assert_eq!((read.len(), checksum_of(&read)), (1, checksum_of(&members)));
        let mut other = members.clone();
        other.insert("z".to_owned(), String::new());
        prop_assert_ne!(checksum_of(&read), checksum_of(&other));
    }

    #[test]
    fn what_is_no_json_harms_nobody(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Prune::new(&ANY).next(&bytes);
        let _ = Prune::new(&SUM).next(&[b"{\"a\":{", &*bytes].concat());
    }
}

#[test]
fn however_much_there_is_little_is_kept() {
    let words = |head: &str| -> Vec<String> { (0..5000).map(|n| format!("{head}{n}")).collect() };
    let members: Map<String, Value> = words("x")
        .into_iter()
        .map(|name| (name, json!("v".repeat(2000))))
        .collect();
    for value in [
        json!({"xa": vec!["x"; 5000]}),
        json!({"c": words("x"), "a": words("x")}),
        json!({"c": members}),
        json!({"a": "x".repeat(1 << 20), "z": members}),
    ] {
        let kept = Prune::new(&ANY).next(value.to_string().as_bytes()).unwrap();
        assert!(kept.len() < 10_000, "{}", kept.len());
    }
}

#[test]
fn a_time_of_which_nothing_can_be_made_is_left_out() {
    static TIMES: Keep = Keep::Each(&Keep::Members(&[("t", Keep::Time), ("u", Keep::WORD)]));
    let time = "2026-11-29T12:00:00Z";
    let read = |time: &str| {
        let kept = Prune::new(&TIMES).next(json!([{"t": time, "u": "u"}]).to_string().as_bytes());
        serde_json::from_slice::<Value>(&kept.unwrap()).unwrap()
    };
    assert_eq!(read(time), json!([{"t": time, "u": "u"}]));
    for time in [
        "10000-01-01T11:59:59Z",
        "9999-12-31T23:59:59Z",
        "-001-12-31T12:00:00Z",
        "",
    ] {
        assert_eq!(read(time), json!([{"u": "u"}]), "{time}");
    }
}

#[test]
fn of_what_is_too_large_as_much_as_fits_is_kept_and_it_says_so() {
    static EACH: Keep = Keep::Members(&[
        ("a", Keep::WORD),
        ("all", Keep::Each(&Keep::Text(8))),
        ("last", Keep::WORD),
    ]);
    static LIST: Keep = Keep::Each(&Keep::Within(100, &EACH));
    let object = |count: usize| json!({"a": "n", "all": vec!["x"; count], "last": "l"});
    let read = |value: &Value| -> Value {
        let kept = Prune::new(&LIST).next(value.to_string().as_bytes());
        serde_json::from_slice(&kept.unwrap()).unwrap()
    };
    let all = json!([object(5), object(5000), object(6)]);
    let found = read(&all);
    assert_eq!((&found[0], &found[2]), (&all[0], &all[2]));
    let kept = found[1]["all"].as_array().unwrap().len();
    assert!((10..25).contains(&kept), "{kept}");
    assert_eq!(
        (&found[1]["a"], &found[1]["cut"]),
        (&json!("n"), &json!(true))
    );
    assert_eq!(
        read(&json!([{"all": [["x"], "x".repeat(9)]}])),
        json!([{"all": ["?"]}])
    );
}

#[test]
fn what_is_of_no_use_without_all_is_not_read_if_it_is_too_large() {
    static ALL: Keep = Keep::All;
    static SOME: Keep = Keep::Members(&[("a", Keep::Each(&Keep::WORD)), ("b", Keep::Members(&[]))]);
    static WHOLE: [Keep; 2] = [Keep::Whole(2048, &ALL), Keep::Whole(2048, &SOME)];
    for keep in &WHOLE {
        let read = |count: usize, size: usize| {
            let object = json!({"a": vec!["x"; count]}).to_string();
            let mut prune = Prune::new(keep);
            let mut parts = object.as_bytes().chunks(size);
            parts.try_fold(Vec::new(), |mut all, part| {
                all.extend(prune.next(part)?);
                Ok(all)
            })
        };
        for size in [1, 100, 1 << 20] {
            assert!(
                read(500, size).is_ok_and(|kept| kept.len() == 2007),
                "{size}"
            );
            assert_eq!(read(520, size), Err(TooLarge(2048)), "{size}");
        }
        let many = json!({"b": vec!["x"; MOST + 1]}).to_string();
        let kept = Prune::new(&WHOLE[1]).next(many.as_bytes());
        assert_eq!(kept, Err(TooLarge(2048)), "elements are dropped, too");
    }
    let why = TooLarge(64 << 10).to_string();
    assert_eq!(
        why,
        "the object is too large: of one of its kind at most 64 KiB are read"
    );
}
