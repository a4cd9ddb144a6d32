//! The calls of Kubernetes, as the forwarding driver recorded them.

use crate::lab::{CALLS, Lab};
use serde_json::Value;
use std::fs;

/// One recorded call.
#[derive(Clone, Debug)]
pub struct Call {
    pub caller: String,
    /// The driver's name without its vendor.
    pub driver: String,
    /// Milliseconds since midnight.
    pub time: u64,
    /// Milliseconds that the driver took.
    pub took: u64,
    pub argv: Vec<String>,
    pub reply: Value,
    /// The whole record.
    pub line: Value,
}

impl Call {
    pub fn callout(&self) -> &str {
        &self.argv[0]
    }

    pub fn succeeded(&self) -> bool {
        self.reply["status"] == "Success"
    }

    /// Whether an argument contains this text, such as the name of a volume.
    pub fn mentions(&self, text: &str) -> bool {
        self.argv.iter().any(|argument| argument.contains(text))
    }

    fn read(line: &str) -> Self {
        let line: Value = serde_json::from_str(line).unwrap();
        let argv = line["argv"].as_array().unwrap().iter();
        Call {
            caller: line["caller"].as_str().unwrap().to_owned(),
            time: milliseconds(line["time"].as_str().unwrap()),
            took: line["milliseconds"].as_u64().unwrap(),
            argv: argv
                .map(|argument| argument.as_str().unwrap().to_owned())
                .collect(),
            reply: line["reply"].clone(),
            driver: line["driver"].as_str().unwrap().to_owned(),
            line,
        }
    }
}

/// Every call since the cluster was started.
pub fn calls(lab: &Lab) -> Vec<Call> {
    let text = fs::read_to_string(lab.cluster().file(CALLS)).unwrap_or_default();
    // The last line may be incomplete.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(Call::read).collect()
}

/// `hh:mm:ss.mmm`
fn milliseconds(time: &str) -> u64 {
    let part = |from: usize, to: usize| time[from..to].parse::<u64>().unwrap();
    ((part(0, 2) * 60 + part(3, 5)) * 60 + part(6, 8)) * 1000 + part(9, 12)
}
