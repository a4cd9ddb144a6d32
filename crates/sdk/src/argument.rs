//! The JSON argument of a callout: one flat object of strings.

use crate::{Error, FsType, MountRequest, Options, Pod, Result, Secret, Volume, VolumeName};
use serde::{Deserialize, Deserializer, de};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt,
    path::PathBuf,
};

/// Longest single argument that the kernel passes to a program (`MAX_ARG_STRLEN`).
const MAX_LENGTH: usize = 128 << 10;

const FS_TYPE: &str = "kubernetes.io/fsType";
const READ_WRITE: &str = "kubernetes.io/readwrite";
const NAME: &str = "kubernetes.io/pvOrVolumeName";
const CLAIM_NAMESPACE: &str = "kubernetes.io/pvc.namespace";
const POD_NAMESPACE: &str = "kubernetes.io/pod.namespace";
const POD_NAME: &str = "kubernetes.io/pod.name";
const POD_UID: &str = "kubernetes.io/pod.uid";
const SERVICE_ACCOUNT: &str = "kubernetes.io/serviceAccount.name";
/// The fsGroup key of Kubernetes 1.6 to 1.14 (pkg/volume/flexvolume/util.go).
const FS_GROUP_TO_1_14: &str = "kubernetes.io/fsGroup";
/// The fsGroup key since 1.15, renamed by accident (pkg/volume/flexvolume/mounter.go).
const FS_GROUP: &str = "kubernetes.io/mounterArgs.FsGroup";
pub(crate) const SECRET: &str = "kubernetes.io/secret/";
/// Keys that callers write and this crate ignores.
const UNUSED: [&str; 3] = [
    SERVICE_ACCOUNT,
    "kubernetes.io/pvc.name",
    "kubernetes.io/pvc.uid",
];

/// The keys and values of a JSON argument. Each `take` removes a known key, so that the volume author's options
/// remain.
pub(crate) struct Argument(BTreeMap<String, String>);

impl Argument {
    pub(crate) fn parse(text: &OsStr) -> Result<Self> {
        let text = text
            .to_str()
            .ok_or_else(|| Error::invalid("the JSON argument is not UTF-8"))?;
        if text.len() > MAX_LENGTH {
            return Err(Error::invalid("the JSON argument is longer than 128 KiB"));
        }
        // Serde's messages quote the input, which may be secret, so only the column is used.
        let json: Json = serde_json::from_str(text).map_err(|error| {
            let column = error.column();
            Error::invalid(format!("the JSON argument is no JSON (column {column})"))
        })?;
        let Json::Object(entries) = json else {
            return Err(Error::invalid("the JSON argument is no object"));
        };
        let mut map = BTreeMap::new();
        for (key, value) in entries {
            if key.contains(char::is_control) {
                return Err(Error::invalid(format!(
                    "option {key:?}: a control character in a name"
                )));
            }
            let Json::Text(value) = value else {
                return Err(Error::invalid(format!(
                    "option {key:?}: the value is no string"
                )));
            };
            if map.insert(key.clone(), value).is_some() {
                return Err(Error::invalid(format!("option {key:?} is there twice")));
            }
        }
        Ok(Argument(map))
    }

    /// Removes and returns one value.
    pub(crate) fn take(&mut self, key: &str) -> Result<Option<String>> {
        let value = self.0.remove(key);
        if value
            .as_ref()
            .is_some_and(|value| value.contains(char::is_control))
        {
            return Err(control_character(key));
        }
        Ok(value)
    }

    /// Builds the [`Volume`] that every callout gets. Keys that are not Kubernetes' own become its options.
    pub(crate) fn into_volume(mut self) -> Result<Volume> {
        let name = self.take(NAME)?.map(|name| VolumeName::parse(&name));
        let filesystem = self.take(FS_TYPE)?.filter(|name| !name.is_empty());
        let read_only = match self.take(READ_WRITE)?.as_deref() {
            None | Some("rw") => false,
            Some("ro") => true,
            Some(_) => return Err(Error::invalid(format!("{READ_WRITE} is neither rw nor ro"))),
        };
        Ok(Volume {
            name: name.transpose()?,
            filesystem: filesystem.map(|name| FsType::parse(&name)).transpose()?,
            read_only,
            claim_namespace: self.take_namespace(CLAIM_NAMESPACE)?,
            options: self.into_options()?,
        })
    }

    /// Builds the request of `mount`, which has a pod, secrets and an fsGroup in addition to the volume.
    pub(crate) fn into_mount(mut self, dir: PathBuf) -> Result<MountRequest> {
        let pod = self.take_pod()?;
        let fs_group = self.take_fs_group()?;
        let mut secrets = BTreeMap::new();
        let keys: Vec<String> = self
            .0
            .keys()
            .filter(|key| key.starts_with(SECRET))
            .cloned()
            .collect();
        for key in keys {
            let secret = self.0.remove(&key).and_then(|text| Secret::decode(&text));
            let secret = secret.ok_or_else(|| Error::invalid(format!("{key} is no base64")))?;
            secrets.insert(key[SECRET.len()..].to_owned(), secret);
        }
        Ok(MountRequest {
            dir,
            volume: self.into_volume()?,
            pod,
            secrets,
            fs_group,
        })
    }

    /// Returns the options alone, for callouts that name no volume.
    pub(crate) fn into_options(mut self) -> Result<Options> {
        self.0.retain(|key, _| {
            let reserved = is_reserved(key);
            if reserved && !UNUSED.contains(&key.as_str()) && !is_told_elsewhere(key) {
                log::warn!("ignored the unknown reserved key {key}");
            }
            !reserved
        });
        // Newlines and tabs are allowed because lists and certificates contain them; neither the log nor the reply
        // breaks on them.
        let forbidden = |c: char| c.is_control() && c != '\n' && c != '\t';
        match self.0.iter().find(|(_, value)| value.contains(forbidden)) {
            Some((key, _)) => Err(control_character(key)),
            None => Ok(self.0.into()),
        }
    }

    fn take_name(&mut self, key: &str) -> Result<Option<VolumeName>> {
        let name = self.take(key)?;
        let name = name.map(|name| VolumeName::parse(&name)).transpose();
        name.map_err(|_| Error::invalid(format!("{key} is no name of an object")))
    }

    /// A namespace's name has no dot, unlike those of other objects.
    fn take_namespace(&mut self, key: &str) -> Result<Option<String>> {
        match self.take_name(key)? {
            Some(name) if name.cannot_be_inline() => {
                Err(Error::invalid(format!("{key} is no DNS label")))
            }
            name => Ok(name.map(|name| name.to_string())),
        }
    }

    fn take_pod(&mut self) -> Result<Option<Pod>> {
        let namespace = self.take_namespace(POD_NAMESPACE)?;
        let name = self.take_name(POD_NAME)?;
        let uid = self.take_name(POD_UID)?;
        // Empty for a static pod, which no admission gave one.
        let service_account = self.take(SERVICE_ACCOUNT)?.filter(|name| !name.is_empty());
        match (namespace, name, uid) {
            (None, None, None) => Ok(None),
            (Some(namespace), Some(name), Some(uid)) => Ok(Some(Pod {
                namespace,
                name: name.to_string(),
                uid: uid.to_string(),
                service_account,
            })),
            (namespace, name, _) => {
                let missing = match (namespace, name) {
                    (None, _) => POD_NAMESPACE,
                    (_, None) => POD_NAME,
                    _ => POD_UID,
                };
                Err(Error::invalid(format!("{missing} is missing")))
            }
        }
    }

    fn take_fs_group(&mut self) -> Result<Option<u32>> {
        let mut group = None;
        for key in [FS_GROUP_TO_1_14, FS_GROUP] {
            let Some(text) = self.take(key)? else {
                continue;
            };
            // `u32::MAX` means "leave the group unchanged" in chown(2), so it is not a valid group.
            let number = decimal(&text).and_then(|number| u32::try_from(number).ok());
            let number = number.filter(|number| *number != u32::MAX);
            let number =
                number.ok_or_else(|| Error::invalid(format!("{key} is no group number")))?;
            if group.is_some_and(|other| other != number) {
                return Err(Error::invalid(
                    "the two keys of the fsGroup contradict each other",
                ));
            }
            group = Some(number);
        }
        Ok(group)
    }
}

/// Whether the API server forbids authors of volumes to use this key (pkg/apis/core/validation/validation.go,
/// `validateFlexVolumeSource`).
fn is_reserved(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else {
        return false;
    };
    let domain = domain.to_ascii_lowercase();
    ["kubernetes.io", "k8s.io"].iter().any(|reserved| {
        domain
            .strip_suffix(reserved)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

/// Whether a reserved key is known from another callout, so that it deserves no warning here.
fn is_told_elsewhere(key: &str) -> bool {
    let known = [
        FS_TYPE,
        READ_WRITE,
        NAME,
        CLAIM_NAMESPACE,
        POD_NAMESPACE,
        POD_NAME,
        POD_UID,
        FS_GROUP_TO_1_14,
        FS_GROUP,
    ];
    key.starts_with(SECRET) || known.contains(&key)
}

fn control_character(key: &str) -> Error {
    Error::invalid(format!("option {key:?}: a control character in the value"))
}

/// Parses a plain decimal number, without sign, space or exponent.
pub(crate) fn decimal(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Builds the JSON argument as kubelet would write it.
pub(crate) fn of_volume(volume: &Volume) -> BTreeMap<String, String> {
    let mut map: BTreeMap<String, String> = volume.options.clone().into();
    let mut put = |key: &str, value: &str| map.insert(key.to_owned(), value.to_owned());
    put(
        FS_TYPE,
        volume.filesystem.as_ref().map_or("", FsType::as_str),
    );
    put(READ_WRITE, if volume.read_only { "ro" } else { "rw" });
    if let Some(name) = &volume.name {
        put(NAME, name.as_str());
    }
    if let Some(namespace) = &volume.claim_namespace {
        put(CLAIM_NAMESPACE, namespace);
    }
    map
}

/// Builds the JSON argument of `mount` as kubelet since 1.15 would write it.
pub(crate) fn of_mount(request: &MountRequest) -> BTreeMap<String, String> {
    let mut map = of_volume(&request.volume);
    if let Some(pod) = &request.pod {
        map.insert(POD_NAMESPACE.to_owned(), pod.namespace.clone());
        map.insert(POD_NAME.to_owned(), pod.name.clone());
        map.insert(POD_UID.to_owned(), pod.uid.clone());
        if let Some(account) = &pod.service_account {
            map.insert(SERVICE_ACCOUNT.to_owned(), account.clone());
        }
    }
    if let Some(group) = request.fs_group {
        map.insert(FS_GROUP.to_owned(), group.to_string());
    }
    for (key, secret) in &request.secrets {
        map.insert(format!("{SECRET}{key}"), secret.encode());
    }
    map
}

/// Serializes the map into the form that [`Argument::parse`] reads.
pub(crate) fn to_json(map: BTreeMap<String, String>) -> OsString {
    serde_json::Value::from_iter(map).to_string().into()
}

/// The JSON values that matter here. Any JSON deserializes, so every error is one of syntax.
enum Json {
    Text(String),
    Object(Vec<(String, Json)>),
    Other,
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Visitor)
    }
}

struct Visitor;

impl<'de> de::Visitor<'de> for Visitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Json::Object(entries))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        while access.next_element::<de::IgnoredAny>()?.is_some() {}
        Ok(Json::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vendors_own_file_system_and_texts_of_lines_are_passed_on() {
        let long = "b".repeat(100 << 10);
        let json = format!(r#"{{"{FS_TYPE}":"nfs","a":"1\n\t2\n","long":"{long}"}}"#);
        let volume = Argument::parse(json.as_ref()).and_then(Argument::into_volume);
        let volume = volume.unwrap();
        assert_eq!(volume.filesystem, Some(FsType::parse("nfs").unwrap()));
        assert_eq!(volume.options.get("a"), Some("1\n\t2\n"));
        assert_eq!(volume.options.get("long"), Some(long.as_str()));
        assert!(volume.known_filesystem().is_err());
    }
}
