//! Parsed requests.

use crate::{KINDS, Key, Kind, Refused, store::write::Part};
use http::{Method, Uri};

/// A request without its body.
#[derive(Clone, Debug)]
pub(crate) struct ApiRequest {
    pub method: Method,
    pub kind: &'static Kind,
    /// `None` for all namespaces.
    pub namespace: Option<String>,
    /// `None` for the collection.
    pub name: Option<String>,
    pub part: Part,
    pub watch: bool,
    pub bookmarks: bool,
    pub limit: Option<usize>,
    pub from: Option<String>,
    pub version: Option<u64>,
    pub seconds: Option<u64>,
    /// Key of the label selector, and its value unless any will do.
    pub label: Option<(String, Option<String>)>,
}

impl ApiRequest {
    pub fn of(method: &Method, uri: &Uri) -> Result<Self, Refused> {
        // The real API server answers in plain text for an unknown path.
        let unknown = || Refused::new(404, "", "404 page not found\n");
        let mut parts = uri.path().trim_start_matches('/').split('/');
        let (group, version) = match parts.next() {
            Some("api") => ("", parts.next()),
            Some("apis") => (parts.next().unwrap_or_default(), parts.next()),
            _ => return Err(unknown()),
        };
        let mut rest: Vec<&str> = parts.collect();
        let mut namespace = None;
        if let ["namespaces", name, _, ..] = rest[..] {
            namespace = Some(name.to_owned());
            rest.drain(..2);
        }
        let (plural, name, sub) = match rest[..] {
            [plural] => (plural, None, None),
            [plural, name] => (plural, Some(name.to_owned()), None),
            [plural, name, sub] => (plural, Some(name.to_owned()), Some(sub)),
            _ => return Err(unknown()),
        };
        let kind = KINDS
            .iter()
            .find(|kind| {
                kind.plural == plural && kind.group == group && Some(kind.version) == version
            })
            .ok_or_else(unknown)?;
        let part = match sub {
            None => Part::Main,
            Some("status") if kind.status => Part::Status,
            Some(_) => return Err(unknown()),
        };
        let mut request = ApiRequest {
            method: method.clone(),
            kind,
            namespace,
            name,
            part,
            watch: false,
            bookmarks: false,
            limit: None,
            from: None,
            version: None,
            seconds: None,
            label: None,
        };
        let query = uri.query().unwrap_or_default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            request.parameter(&key, &value)?;
        }
        Ok(request)
    }

    fn parameter(&mut self, key: &str, value: &str) -> Result<(), Refused> {
        let number = || {
            let number = value.parse::<u64>();
            number.map_err(|_| Refused::new(400, "BadRequest", format!("{key}: not a number")))
        };
        match key {
            "watch" => self.watch = matches!(value, "true" | "1"),
            "allowWatchBookmarks" => self.bookmarks = value == "true",
            "limit" => self.limit = usize::try_from(number()?).ok().filter(|limit| *limit > 0),
            "continue" => self.from = Some(value.to_owned()),
            "resourceVersion" => self.version = Some(number()?),
            // A list here always has the current state.
            "resourceVersionMatch" if value == "NotOlderThan" => {}
            "timeoutSeconds" => self.seconds = Some(number()?),
            "labelSelector" => match value.split_once('=') {
                Some((key, value)) if !value.contains([',', '=', '!']) => {
                    self.label = Some((key.to_owned(), Some(value.to_owned())));
                }
                None if !value.contains([',', '!', ' ']) => {
                    self.label = Some((value.to_owned(), None));
                }
                _ => return Err(Refused::unknown(&format!("label selector {value}"))),
            },
            // Field managers are not tracked.
            "fieldManager" => {}
            _ => return Err(Refused::unknown(&format!("parameter {key}"))),
        }
        Ok(())
    }

    /// Returns the key of the requested object; for a collection, of the object named in the body.
    pub fn key(&self, name: &str) -> Key {
        Key::new(
            self.kind.kind,
            self.namespace.as_deref().unwrap_or_default(),
            name,
        )
    }

    /// Returns method, kind and name.
    pub fn words(&self) -> String {
        let verb = match self.watch {
            true => "WATCH",
            false => self.method.as_str(),
        };
        let part = match self.part {
            Part::Main => "",
            Part::Status => "/status",
        };
        let name = self.name.as_deref().unwrap_or_default();
        format!("{verb} {}{part} {name}", self.kind.kind)
    }

    /// Whether the request is a write.
    pub fn writes(&self) -> bool {
        self.method != Method::GET
    }
}
