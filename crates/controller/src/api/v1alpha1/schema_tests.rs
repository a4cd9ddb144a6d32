//! Tests of our objects' schemas in the manifests: values that nodes write are bounded, and all values that the API
//! server accepts can be parsed.

use super::*;
use serde_json::{Value, from_value, json};

/// The schema of a kind.
pub(crate) fn schema(kind: &str) -> Value {
    let manifests = include_str!("../../../../../deploy/cluster/objects.yaml").split("\n---\n");
    let mut all = manifests.map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
    let found = all.find(|definition| definition["spec"]["names"]["kind"] == kind);
    found.unwrap()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take()
}

/// Returns why the API server would reject a value.
pub(crate) fn refuses(schema: &Value, value: &Value) -> Option<String> {
    if value.is_null() && schema["nullable"] == true {
        return None;
    }
    let exceeds = |size: usize, bound: &str| {
        let most = schema[bound].as_u64().map(usize::try_from);
        most.is_some_and(|most| size > most.unwrap())
    };
    let is_wrong = match value {
        Value::Object(_) => exceeds(members(value).count(), "maxProperties"),
        Value::String(text) => {
            let words = schema["enum"].as_array();
            words.is_some_and(|words| !words.contains(value))
                || exceeds(text.chars().count(), "maxLength")
        }
        Value::Number(number) => {
            let number = number.as_i128().unwrap();
            let bound = |name: &str| schema[name].as_i64().map(i128::from);
            i64::try_from(number).is_err()
                || bound("minimum").is_some_and(|least| number < least)
                || bound("maximum").is_some_and(|most| number > most)
        }
        _ => false,
    };
    if is_wrong || schema["type"] != type_of(value) {
        return Some(format!("{schema}: {value}"));
    }
    members(value).find_map(|(name, member)| {
        let known = schema["properties"].get(name);
        let of = known.or(schema.get("additionalProperties"));
        of.and_then(|of| refuses(of, member))
    })
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn members(of: &Value) -> impl Iterator<Item = (&String, &Value)> {
    of.as_object().into_iter().flatten()
}

/// Returns the strings and lists of a schema that are unbounded.
fn unbounded(schema: &Value, place: &str) -> Vec<String> {
    let any = schema.get("additionalProperties");
    let is_bounded = match schema["type"].as_str().unwrap() {
        "string" => schema.get("maxLength").is_some() || schema.get("enum").is_some(),
        "integer" => schema["format"] == "int64",
        "boolean" => true,
        "object" => any.is_none() || schema.get("maxProperties").is_some(),
        other => panic!("{place}: {other}"),
    };
    let mut all = Vec::new();
    if !is_bounded {
        all.push(place.to_owned());
    }
    for (name, of) in members(&schema["properties"]) {
        all.extend(unbounded(of, &format!("{place}.{name}")));
    }
    if let Some(of) = any {
        // Names are bounded by a rule, or by their origin.
        if !schema["x-kubernetes-validations"][0]["rule"].is_string()
            && !place.starts_with("spec.parameters")
        {
            all.push(format!("names in {place}"));
        }
        all.extend(unbounded(of, &format!("{place}.*")));
    }
    all
}

/// Returns valid values that meet each bound and each choice of a schema.
fn allowed(schema: &Value) -> Vec<Value> {
    let mut all = match schema["type"].as_str().unwrap() {
        "string" => match schema["enum"].as_array() {
            Some(words) => words.clone(),
            None => {
                let most = schema["maxLength"].as_u64().unwrap_or(9).try_into();
                vec![json!(""), json!("x".repeat(most.unwrap()))]
            }
        },
        "integer" => vec![
            json!(schema["minimum"].as_i64().unwrap_or(i64::MIN)),
            json!(schema["maximum"].as_i64().unwrap_or(i64::MAX)),
        ],
        "boolean" => vec![json!(false), json!(true)],
        _ => allowed_objects(schema),
    };
    if schema["nullable"] == true {
        all.push(Value::Null);
    }
    all
}

/// Returns an object with required members only, and others with one more member each.
fn allowed_objects(schema: &Value) -> Vec<Value> {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let mut least = json!({});
    for name in &required {
        let name = name.as_str().unwrap();
        least[name] = allowed(&schema["properties"][name])[0].clone();
    }
    let mut all = vec![least.clone()];
    let any = schema.get("additionalProperties").map(|of| ("any", of));
    let named = members(&schema["properties"]).map(|(name, of)| (name.as_str(), of));
    for (name, of) in named.chain(any) {
        for value in allowed(of) {
            let mut object = least.clone();
            object[name] = value;
            all.push(object);
        }
    }
    all
}

#[test]
fn whatever_is_written_into_our_objects_is_bounded() {
    for kind in ["NodeVolume", "StorageNode"] {
        let schema = schema(kind);
        for (name, of) in members(&schema["properties"]) {
            assert_eq!(unbounded(of, name), [""; 0], "{kind}");
        }
    }
}

#[test]
fn whatever_may_be_written_into_our_objects_can_be_read() {
    let every = |kind: &str, read: &dyn Fn(Value) -> Result<(), serde_json::Error>| {
        let schema = schema(kind);
        let all = allowed(&schema);
        assert!(all.len() > 10, "{kind}: {}", all.len());
        for mut object in all {
            assert_eq!(refuses(&schema, &object), None);
            object["apiVersion"] = json!("flexvol.dev/v1alpha1");
            object["kind"] = json!(kind);
            object["metadata"] = json!({"name": "n"});
            if let Err(error) = read(object.clone()) {
                panic!("{error}: {object}");
            }
        }
    };
    every("NodeVolume", &|object| {
        from_value::<NodeVolume>(object).map(drop)
    });
    every("StorageNode", &|object| {
        from_value::<StorageNode>(object).map(drop)
    });
}
