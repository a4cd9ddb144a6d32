//! A kernel that denies writes to a mounted device, and does not mount a device that a process has open for
//! writing.

use crate::NEEDS;
use flexvol_lab::vm::{Machine, Setup};
use flexvol_testing::{Points, arena, executable, tests};
use std::{env, time::Duration};

tests! {
    "volumes live on a kernel that protects mounted devices from writers", NEEDS => lives;
}

const LIMIT: Duration = Duration::from_secs(900);

/// A pool of images and one of logical volumes. First checks that the kernel has this protection.
const POOLS: &str = r#"
set -ex
mkfs.ext4 -q /dev/vda
mount /dev/vda /mnt
if (exec 3<>/dev/vda) 2>/dev/null; then echo "this kernel protects nothing"; exit 1; fi
mkdir -p /mnt/pool /plugins /var/log
/opt/flexvol pool init /mnt/pool
printf 'backend = "loop"\n[pools.default]\npath = "/mnt/pool"\n' >/loop.toml
vgcreate -q vg0 /dev/vdb
/opt/flexvol pool init --group vg0
printf 'backend = "lvm"\n[pools.default]\ngroup = "vg0"\n' >/lvm.toml
for backend in loop lvm; do
    /opt/flexvol install --name example.com/$backend --config /$backend.toml --plugin-dir /plugins
done
"#;

/// The life of one volume: mounted, mounted a second time and read-only, grown mounted and unmounted, and
/// deleted.
const LIFE: &str = r#"
set -ex
backend=$1 type=$2
driver=/plugins/example.com~$backend/$backend
called() {
    local reply
    reply=$("$driver" "$@")
    echo "$backend $type $1: $reply"
    case $reply in *'"Success"'*) ;; *) exit 1 ;; esac
}
name='"kubernetes.io/pvOrVolumeName":"pvc-'$type'"'
said=$("$driver" provision "{\"kubernetes.io/fsType\":\"$type\",$name,\"kubernetes.io/pvc.namespace\":\"default\",\"requestBytes\":\"335544320\"}")
handle=$(sed 's/.*"volumeName":"\([0-9a-f]*\)".*/\1/' <<<"$said")
volume() {
    echo "{\"handle\":\"$handle\",\"pool\":\"default\",\"kubernetes.io/fsType\":\"$type\",$name,\"kubernetes.io/readwrite\":\"$1\",\"kubernetes.io/pod.namespace\":\"default\",\"kubernetes.io/pod.name\":\"one\",\"kubernetes.io/pod.uid\":\"one\"}"
}
one=/var/lib/kubelet/pods/one/volumes/example.com~$backend/pvc-$type
two=/var/lib/kubelet/pods/two/volumes/example.com~$backend/pvc-$type
mkdir -p "$one" "$two"
called mount "$one" "$(volume rw)"
echo kept >"$one/file"
called mount "$two" "$(volume ro)"
called expandfs "$(volume rw)" '' "$one" 402653184 335544320
called unmount "$two"
called unmount "$one"
called expandvolume "$(volume rw)" "$one" 436207616 402653184
called mount "$one" "$(volume rw)"
[ "$(cat "$one/file")" = kept ]
[ "$(df --output=size -B1M "$one" | tail -1)" -gt 330 ]
called unmount "$one"
called delete "$(volume rw)"
"#;

fn lives(points: &Points) {
    let mut machine =
        Machine::boot_newer(&Setup::new(&arena()), "bdev_allow_write_mounted=0").unwrap();
    let driver = executable(env!("CARGO_BIN_EXE_flexvol"));
    machine.put_executable(&driver, "/opt/flexvol").unwrap();
    machine.run(POOLS, LIMIT).unwrap().success().unwrap();
    for backend in ["loop", "lvm"] {
        for filesystem in ["ext4", "xfs", "btrfs"] {
            let script = format!("set -- {backend} {filesystem}\n{LIFE}");
            machine.run(&script, LIMIT).unwrap().success().unwrap();
            points.add(1);
        }
    }
}
