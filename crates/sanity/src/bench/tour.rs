//! A tour of all callouts, whose output all checks of the group `output` examine.

use crate::{
    bench::Bench,
    callout::{CALLOUTS, argument, call::Call},
    run::{Run, Tour},
    system,
    verdict::Stop,
    volume::Source,
};

/// Returns the tour, which is made once in a run.
pub fn of<'a>(bench: &Bench<'a>) -> Result<&'a Tour, Stop> {
    let run = bench.run;
    if let Some(tour) = run.tour.get() {
        return Ok(tour);
    }
    let tour = tour(run)?;
    Ok(run.tour.get_or_init(|| tour))
}

fn tour(run: &Run) -> Result<Tour, Stop> {
    let number = run.count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let bench = Bench::new(run, &format!("tour-{number}"))?;
    let walked = walk(&bench);
    let closed = bench.close(false);
    let cut = walked?;
    closed.cleared?;
    Ok(Tour {
        calls: closed.calls,
        cut,
    })
}

/// Makes the tour. Does not judge the answers. Returns where and why it ended early, if it did.
fn walk(bench: &Bench) -> Result<Option<String>, Stop> {
    let run = bench.run;
    for callout in CALLOUTS {
        let directory = bench.dir.join("nobody").join(callout);
        system::make_directory(&directory).map_err(anyhow::Error::from)?;
        bench.call(&run.missing_volume_arguments(callout, &directory))?;
    }
    bench.call(&["sanity-unknown", "{}"])?;
    bench.call(&["mount"])?;
    bench.call(&["mount", "/nowhere", "{\"broken\""])?;
    if !system::is_root() || run.source == Source::None {
        return Ok(None);
    }
    let volume = bench.volume()?;
    let name = argument::object(&volume.members("rw"));
    bench.call(&["getvolumename", &name])?;
    let mount_point = match bench.attach_and_mount(&volume, "sanity-pod", "rw") {
        Ok(mount_point) => mount_point,
        // The failed call is recorded among the calls.
        Err(Stop::Fault(fault)) => {
            let callout = fault.call.as_ref().map_or("", Call::callout).to_owned();
            return Ok(Some(format!(
                "the callouts after {callout}, which went wrong"
            )));
        }
        Err(other) => return Err(other),
    };
    bench.call(&["isattached", &name, run.node()])?;
    bench.call(&bench.expand_arguments(&mount_point, volume.bytes, volume.bytes))?;
    match bench.unmount_and_detach(&mount_point) {
        Err(Stop::Fault(fault)) => {
            let callout = fault.call.as_ref().map_or("", Call::callout).to_owned();
            Ok(Some(format!(
                "the callouts after {callout}, which went wrong"
            )))
        }
        other => other.map(|()| None),
    }
}
