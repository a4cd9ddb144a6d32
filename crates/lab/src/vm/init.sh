#!/bin/bash
# The first process of the virtual machine, and the only one that is always there. It makes what
# systemd would, says `ready` on the channel, and then runs one request of the machine outside after
# the other: a line `TOKEN BYTES` and a script of so many bytes. What the script writes goes back as
# it is, closed by a line of its own: the token and the status.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 TMPDIR=/tmp
# Nobody here makes device nodes but those who make devices, and nobody answers udev's cookies.
export DM_DISABLE_UDEV=1 LVM_SUPPRESS_FD_WARNINGS=1
export FLEXVOL_VM=1 CI=true
mount -t devtmpfs -o nosuid dev /dev
mkdir -p /dev/pts /dev/shm
mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs -o nosuid,nodev,noexec sys /sys
mount -t cgroup2 -o nosuid,nodev,noexec cgroup /sys/fs/cgroup
mount -t devpts -o nosuid,noexec,ptmxmode=0666 devpts /dev/pts
mount -t tmpfs -o nosuid,nodev,mode=0755 tmpfs /run
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs /tmp
exec </dev/null >/dev/console 2>&1
for link in fd:self/fd stdin:self/fd/0 stdout:self/fd/1 stderr:self/fd/2; do
    ln -s "/proc/${link#*:}" "/dev/${link%%:*}"
done
mkdir -p /run/lock /run/lab
# All of them now, so that no later step pays for it.
modprobe -a $(</etc/modules)
# As systemd has it: a mount namespace made later sees what is mounted here.
mount --make-rshared /

for port in /sys/class/virtio-ports/*; do
    [ "$(<"$port/name")" != lab ] || exec 3<>"/dev/${port##*/}"
done
for disk in /dev/vd?; do blockdev --flushbufs "$disk"; done
cd /root || exit
read -r up _ </proc/uptime
echo "ready $up" >&3
while read -r token bytes <&3; do
    # A restored machine would repeat its random numbers. This comes before any program is started:
    # whoever asks first for randomness makes the kernel take it from what was mixed until then.
    echo "$token" >/dev/urandom
    head -c "$bytes" <&3 >/run/lab/script
    bash /run/lab/script >&3 2>&1 3>&-
    printf '\n%s %d\n' "$token" $? >&3
done
echo 'the channel is closed'
poweroff -f || echo o >/proc/sysrq-trigger
