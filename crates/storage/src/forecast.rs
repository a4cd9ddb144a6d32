//! Predicts the steps to a goal without doing them: calls [`decide`] repeatedly, assuming that each step
//! succeeds.

use crate::{
    decide::{Next, Step, decide},
    mark::{Format, State},
    observed::{Content, DeviceState, Goal, Observed, TargetState},
    reconcile::MAX_STEPS,
};
use flexvol_host::Uuid;
use flexvol_sdk::{Bytes, ErrorKind};

/// The starting point of a forecast.
#[derive(Clone, Debug)]
pub(crate) struct Prospect {
    /// The volume's present state.
    pub seen: Observed,
    /// The content that the device will show once it exists.
    pub content: Content,
    /// The free space of the pool; `None` if unknown.
    pub available: Option<Bytes>,
}

/// The steps to a goal, as far as they can be predicted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forecast {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// What follows the last step.
    pub end: Ending,
}

/// How a [`Forecast`] ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The goal is reached.
    Reached,
    /// The goal is refused.
    Refused(ErrorKind, String),
    /// The rest depends on what the steps find.
    Open,
}

impl Forecast {
    pub(crate) fn refused(kind: ErrorKind, why: String) -> Self {
        Forecast {
            steps: Vec::new(),
            end: Ending::Refused(kind, why),
        }
    }
}

pub(crate) fn forecast(mut prospect: Prospect, goal: &Goal) -> Forecast {
    let mut steps: Vec<Step> = Vec::new();
    while steps.len() < MAX_STEPS {
        let step = match decide(&prospect.seen, goal) {
            Next::Reached => {
                return Forecast {
                    steps,
                    end: Ending::Reached,
                };
            }
            Next::Refuse(kind, why) => {
                return Forecast {
                    steps,
                    end: Ending::Refused(kind, why.into_owned()),
                };
            }
            Next::Do(step) => step,
        };
        if let Some(why) = prospect.lacks_room(&step) {
            return Forecast {
                steps,
                end: Ending::Refused(ErrorKind::Exhausted, why),
            };
        }
        let before = prospect.seen.clone();
        let known = prospect.take(&step);
        // Mapping a mapped device changes nothing: the content must be read before one can go on.
        if !known || prospect.seen == before {
            break;
        }
        steps.push(step);
    }
    Forecast {
        steps,
        end: Ending::Open,
    }
}

impl Prospect {
    fn lacks_room(&self, step: &Step) -> Option<String> {
        let Step::GrowStorage { to } = step else {
            return None;
        };
        let asset = self.seen.asset.as_ref().filter(|asset| !asset.promised)?;
        let wanted = to.saturating_sub(asset.size);
        let available = self.available?;
        (wanted > available).then(|| {
            format!("the volume needs {wanted:#} more and the pool has {available:#} to give")
        })
    }

    /// Applies a step as if it had succeeded; returns false if its outcome cannot be predicted.
    fn take(&mut self, step: &Step) -> bool {
        let Some(asset) = &mut self.seen.asset else {
            return false;
        };
        match step {
            Step::Mark(mark) => asset.mark = Some(mark.clone()),
            Step::Map => {
                let blank = asset
                    .mark
                    .as_ref()
                    .is_some_and(|mark| mark.state < State::Ready);
                let content = match &self.content {
                    // If the device proves not to be blank, `Format` refuses.
                    Content::NotRead if blank => Content::Blank,
                    known => known.clone(),
                };
                self.seen.device = Some(DeviceState {
                    size: asset.size,
                    in_use: false,
                    content,
                });
            }
            Step::Format(filesystem) => {
                let (Some(mark), Some(device)) = (&mut asset.mark, &mut self.seen.device) else {
                    return false;
                };
                mark.state = State::Ready;
                mark.format = Some(Format {
                    filesystem: *filesystem,
                    uuid: Uuid::from_bytes([0; 16]),
                });
                device.content = Content::Ours {
                    size: device.size,
                    slack: Bytes(0),
                };
            }
            Step::GrowStorage { to } => {
                asset.size = *to;
                if let Some(device) = &mut self.seen.device {
                    device.size = *to;
                }
            }
            Step::GrowFilesystem => {
                let (Some(mark), Some(device)) = (&mut asset.mark, &mut self.seen.device) else {
                    return false;
                };
                mark.growing = None;
                device.content = Content::Ours {
                    size: device.size,
                    slack: Bytes(0),
                };
                self.content = device.content.clone();
            }
            Step::Mount { read_only } | Step::SetReadOnly(read_only) => {
                self.seen.target = TargetState::Ours {
                    read_only: *read_only,
                };
            }
            Step::Create { .. } | Step::Unmap | Step::Unmount | Step::Destroy => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        mark::Mark,
        observed::{Asset, Requester},
    };
    use flexvol_host::PoolId;
    use flexvol_sdk::{Filesystem, Handle};

    const GIB: Bytes = Bytes::GIB;

    fn prospect(state: State, content: Content) -> Prospect {
        let handle = Handle::from_bytes([1; 16]);
        let pool = PoolId::parse("00112233445566778899aabbccddeeff").unwrap();
        let mark = Mark {
            state,
            format: (state == State::Ready).then_some(Format {
                filesystem: Filesystem::Xfs,
                uuid: Uuid::from_bytes([2; 16]),
            }),
            ..Mark::blank(handle, pool, None, None)
        };
        Prospect {
            seen: Observed {
                asset: Some(Asset::new(GIB, Some(mark))),
                device: None,
                target: TargetState::Free,
                used_by_pods: false,
                takes_no_writes: false,
                growth_refused: false,
            },
            content,
            available: Some(GIB),
        }
    }

    fn mounted() -> Goal {
        Goal::Mounted {
            filesystem: None,
            default: Filesystem::Xfs,
            offline: false,
            read_only: false,
            requester: Requester::Anybody,
        }
    }

    fn grown(to: Bytes) -> Goal {
        Goal::Grown {
            to,
            offline: false,
            read_only: false,
        }
    }

    fn names(forecast: &Forecast) -> Vec<&'static str> {
        forecast.steps.iter().map(Step::name).collect()
    }

    const FULL: Content = Content::Ours {
        size: GIB,
        slack: Bytes(0),
    };

    #[test]
    fn a_blank_volume_is_mapped_formatted_and_mounted() {
        let forecast = forecast(prospect(State::Blank, Content::NotRead), &mounted());
        assert_eq!(names(&forecast), ["map", "format", "mount"]);
        assert_eq!(forecast.end, Ending::Reached);
    }

    #[test]
    fn a_growth_goes_through_storage_and_file_system() {
        let forecast = forecast(prospect(State::Ready, FULL), &grown(Bytes(2 << 30)));
        let steps = ["map", "mark", "grow-storage", "grow-filesystem"];
        assert_eq!(names(&forecast), steps);
        assert_eq!(forecast.end, Ending::Reached);
    }

    #[test]
    fn a_growth_beyond_the_pool_is_refused_with_both_numbers() {
        let forecast = forecast(prospect(State::Ready, FULL), &grown(Bytes(3 << 30)));
        assert_eq!(
            forecast.end,
            Ending::Refused(
                ErrorKind::Exhausted,
                "the volume needs 2Gi more and the pool has 1Gi to give".to_owned()
            )
        );
    }

    #[test]
    fn what_was_not_read_leaves_the_end_open() {
        let forecast = forecast(prospect(State::Ready, Content::NotRead), &mounted());
        assert_eq!(names(&forecast), ["map"]);
        assert_eq!(forecast.end, Ending::Open);
    }
}
