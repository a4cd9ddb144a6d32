#!/bin/sh
# A driver whose volumes are directories with a file that has their size: it has no file system to grow. The
# class parameter `fault` makes it misbehave. `pool` selects the place of a volume, and the driver does not
# look for it elsewhere. Volumes are in /var/lib/lab/plain.
place=/var/lib/lab/plain
ok() { echo "{\"status\":\"Success\"$1}"; }
# value KEY JSON: the JSON argument is one flat object of strings.
value() { printf %s "$2" | sed -n "s|.*\"$1\":\"\([^\"]*\)\".*|\1|p"; }
volume() { echo "$place/$(value pool "$1" | sed 's/..*/&./')$(value kubernetes.io/pvOrVolumeName "$1")"; }
case $1 in
init) ok ',"capabilities":{"attach":false,"requiresFSResize":false}' ;;
capacity) ok ',"capacity":1099511627776' ;;
provision)
    case $(value fault "$2") in
    hangs) sleep 1000 ;;
    babbles) echo 'not JSON' && exit 0 ;;
    slow) sleep 4 ;;
    small) ok ',"options":{},"capacity":1' && exit 0 ;;
    full) echo '{"status":"Failure","message":"there is no room after all","errorClass":"exhausted"}' && exit 1 ;;
    esac
    size=$(value requestBytes "$2")
    mkdir -p "$(volume "$2")"
    echo "$size" >"$(volume "$2")/size"
    case $(value fault "$2") in
    late) sleep 4 ;;
    fixed) touch "$(volume "$2")/fixed" ;;
    esac
    ok ",\"options\":{\"flavour\":\"plain\",\"pool\":\"$(value pool "$2")\"},\"capacity\":$size"
    ;;
expandvolume)
    [ ! -f "$(volume "$2")/fixed" ] || { echo '{"status":"Not supported"}' && exit 1; }
    [ -f "$(volume "$2")/size" ] || { echo '{"status":"Failure","message":"no such volume"}' && exit 1; }
    size=$(cat "$(volume "$2")/size")
    if [ "$4" -lt "$size" ]; then
        # A test fails of this file, unless nobody can know what there is.
        echo "$4" >"$(volume "$2")/asked-for-less"
    else
        size=$4
        echo "$size" >"$(volume "$2")/size"
    fi
    ok ",\"volumeNewSize\":$size"
    ;;
delete) rm -rf "$(volume "$2")" && ok '' ;;
mount) mkdir -p "$2" && mount --bind "$(volume "$3")" "$2" && ok '' ;;
unmount) umount "$2" && ok '' ;;
*) echo '{"status":"Not supported"}' && exit 1 ;;
esac
