//! Limits of what an agent writes, by the schemas in `deploy/cluster/objects.yaml`. The API server would reject the
//! whole answer of a node if one value of a driver exceeded them. Persistent volumes have limits of their own.

use super::exec::Failure;
use crate::api::well_known::is_reserved_option;
use flexvol_sdk::{Bytes, DriverStatus, ErrorClass, PoolSpace};

/// Maximum number of characters of a message.
pub(super) const MESSAGE: usize = 1024;

/// Maximum number of options of a volume.
const OPTIONS: usize = 128;

/// Maximum number of characters of an option's name, and of its value.
const OPTION: (usize, usize) = (253, 8192);

/// Maximum number of characters of a file system's name.
const FS_TYPE: usize = 63;

/// Maximum number of storage classes in a node's report.
pub(super) const CLASSES: usize = 512;

/// Maximum number of characters of a pool's name. Metrics have it as a label.
const POOL: usize = 253;

/// Whether metrics can name the pool.
pub(super) fn is_pool(space: &PoolSpace) -> bool {
    (1..=POOL).contains(&space.pool.chars().count())
}

/// Truncates a message.
pub(super) fn message(text: &str) -> String {
    text.chars().take(MESSAGE).collect()
}

/// Limits a size to the API server's largest integer.
pub(super) fn size(bytes: Bytes) -> u64 {
    bytes.0.min(i64::MAX.unsigned_abs())
}

/// Returns the reply if its identification of the volume can be stored. That cannot be truncated.
///
/// # Errors
/// When it exceeds the limits, or no persistent volume can have it.
pub(super) fn checked(driver: &str, reply: DriverStatus) -> Result<DriverStatus, Failure> {
    let exceeds = |text: &str, most: usize| text.chars().count() > most;
    let long =
        |(name, value): (&String, &String)| exceeds(name, OPTION.0) || exceeds(value, OPTION.1);
    let fs_type = reply.fs_type.as_deref().unwrap_or_default();
    let why = if reply.options.len() > OPTIONS {
        format!("more than {OPTIONS} options")
    } else if reply.options.iter().any(long) {
        let (name, value) = OPTION;
        format!("an option of more than {name} characters, or with more than {value} in its value")
    } else if let Some(name) = reply.options.keys().find(|name| is_reserved_option(name)) {
        format!("option {name:?}, whose name Kubernetes keeps for itself")
    } else if exceeds(fs_type, FS_TYPE) {
        format!("a file system's name of more than {FS_TYPE} characters")
    } else {
        return Ok(reply);
    };
    let message = format!("driver {driver} answered {why}, which no volume can keep");
    Err(Failure::new(ErrorClass::Infeasible, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        agent::{
            callout::Callout,
            status::{after_failure, after_success},
        },
        api::v1alpha1::{
            NodeVolumeStatus,
            schema_tests::{refuses, schema},
        },
    };
    use serde_json::{json, to_value};

    /// A reply to `provision` with this number of options, and these numbers of characters in each name and value.
    fn reply(options: usize, (name, value): (usize, usize), fs_type: usize) -> DriverStatus {
        let names = (0..options).map(|number| format!("{number:é>name$}"));
        let mut reply = DriverStatus::success();
        reply.options = names.map(|name| (name, "é".repeat(value))).collect();
        reply.capacity = Some(Bytes(u64::MAX));
        reply.fs_type = Some("é".repeat(fs_type));
        reply
    }

    /// Why the API server would reject an answer with this reply.
    fn refused(reply: DriverStatus) -> Option<String> {
        let answer = after_success(&Callout::Provision, &NodeVolumeStatus::default(), reply);
        let schema = &schema("NodeVolume")["properties"]["status"];
        refuses(schema, &to_value(answer).unwrap())
    }

    #[test]
    fn what_a_driver_made_is_told_or_the_driver_has_failed() {
        let most = reply(OPTIONS, OPTION, FS_TYPE);
        assert_eq!(refused(checked("a/b", most).unwrap()), None);
        let more = [
            reply(OPTIONS + 1, (3, 1), 1),
            reply(1, (OPTION.0, OPTION.1 + 1), 1),
            reply(1, (1, 1), FS_TYPE + 1),
        ];
        for more in more {
            assert!(refused(more.clone()).is_some());
            let failure = checked("a/b", more).unwrap_err();
            assert_eq!(failure.class, ErrorClass::Infeasible);
        }
        let long = checked("a/b", reply(1, (OPTION.0 + 1, 1), 1)).unwrap_err();
        let why = "driver a/b answered an option of more than 253 characters, or with more than 8192 in its value, which no volume can keep";
        assert_eq!(long.message, why);
    }

    #[test]
    fn what_no_persistent_volume_can_have_is_a_failure_of_the_driver() {
        let mut named = reply(1, (3, 1), 1);
        let option = ("Example.K8s.io/x".to_owned(), "y".to_owned());
        named.options.extend([option]);
        let failure = checked("a/b", named).unwrap_err();
        assert_eq!(failure.class, ErrorClass::Infeasible);
        let why = "driver a/b answered option \"Example.K8s.io/x\", whose name Kubernetes keeps for itself, which no volume can keep";
        assert_eq!(failure.message, why);
    }

    #[test]
    fn of_a_long_message_the_beginning_is_told() {
        let failure = Failure::new(ErrorClass::Retryable, "é".repeat(9999));
        let answer = after_failure(&NodeVolumeStatus::default(), failure);
        let schema = &schema("NodeVolume")["properties"]["status"];
        let mut answer = to_value(answer).unwrap();
        assert_eq!(refuses(schema, &answer), None);
        answer["error"]["message"] = json!("é".repeat(MESSAGE + 1));
        assert!(refuses(schema, &answer).is_some());
    }

    #[test]
    fn a_pool_without_a_name_or_with_an_endless_one_is_not_told_of() {
        let named = |pool: String| PoolSpace {
            pool,
            ..PoolSpace::default()
        };
        assert!(is_pool(&named("é".repeat(POOL))));
        assert!(!is_pool(&named("é".repeat(POOL + 1))));
        assert!(!is_pool(&PoolSpace::default()));
    }

    #[test]
    fn a_node_tells_of_no_more_classes_than_it_may() {
        let status = &schema("StorageNode")["properties"]["status"]["properties"];
        assert_eq!(status["capacities"]["maxProperties"], CLASSES);
    }
}
