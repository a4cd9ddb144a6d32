//! The reply of any driver: a parsed reply is written on one line, and parsed again with the same result.
#![no_main]

use flexvol_fuzz::within;
use flexvol_sdk::{Bytes, DriverStatus, Status};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};

fuzz_target!(|data: &[u8]| {
    let read = within((16 << 10) + 64 * data.len(), || {
        serde_json::from_slice::<DriverStatus>(data)
    });
    let Ok(reply) = read else {
        return;
    };
    let line = reply.to_line();
    assert!(
        line.ends_with("}\n") && line.matches('\n').count() == 1,
        "{line:?}"
    );
    let again: DriverStatus = serde_json::from_str(&line).expect("a reply");
    assert_eq!(again.to_line(), line);
    // The message is for people: on one line, and of limited length.
    let shown = again.message.as_deref().map_or(0, str::len);
    assert!(shown <= (4 << 10) + '…'.len_utf8());
    if let Ok(Value::Object(told)) = serde_json::from_slice(data) {
        is_what_was_told(&reply, &told);
    }
    let mut reply = reply;
    reply.message = again.message.clone();
    assert_eq!(reply, again);
});

/// Checks that every member that occurs once, in any case, is in the reply. Null leaves a member
/// unchanged.
fn is_what_was_told(reply: &DriverStatus, told: &Map<String, Value>) {
    for (key, value) in told {
        let same = told.keys().filter(|other| other.eq_ignore_ascii_case(key));
        if value.is_null() || same.count() > 1 {
            continue;
        }
        let text = value.as_str();
        let number = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.0) == value.as_u64();
        let right = match key.to_ascii_lowercase().as_str() {
            "status" => match text {
                Some("Success") => reply.status == Status::Success,
                Some("Not supported") => reply.status == Status::NotSupported,
                _ => reply.status == Status::Failure,
            },
            "message" => reply.message.as_deref() == text,
            "device" => reply.device.as_deref() == text,
            "volumename" => reply.volume_name.as_deref() == text,
            "fstype" => reply.fs_type.as_deref() == text,
            "attached" => reply.attached == value.as_bool(),
            "volumenewsize" => number(reply.volume_new_size),
            "capacity" => number(reply.capacity),
            "missing" => number(reply.shortfall),
            "poolspace" => reply.pool_space.is_some(),
            _ => true,
        };
        assert!(right, "{key}: {value}: {reply:?}");
    }
}
