package contract

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mounted is a line of this process's mount table.
type mounted struct {
	device, point, filesystem, source string
}

// mounts returns the mounts at or below a directory, oldest first. The directories of the tests
// have no characters that the kernel escapes.
func mounts(below string) []mounted {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		panic(err)
	}
	var found []mounted
	for _, line := range strings.Split(strings.TrimSpace(string(table)), "\n") {
		words := strings.Fields(line)
		point := words[4]
		if point != below && !strings.HasPrefix(point, strings.TrimSuffix(below, "/")+"/") {
			continue
		}
		_, rest, _ := strings.Cut(line, " - ")
		end := strings.Fields(rest)
		found = append(found, mounted{device: words[2], point: point, filesystem: end[0], source: end[1]})
	}
	return found
}

// mountAt returns the only mount on a directory.
func mountAt(t *testing.T, directory string) mounted {
	t.Helper()
	var found []mounted
	for _, mount := range mounts(directory) {
		if mount.point == directory {
			found = append(found, mount)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d mounts on %s, expected one", len(found), directory)
	}
	return found[0]
}

// loopDevice is a loop device and its backing file.
type loopDevice struct{ name, image string }

// loops returns the loop devices on files below a directory, except on files in the directory
// itself, where the disk of the pool is.
func loops(below string) []loopDevice {
	var found []loopDevice
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		panic(err)
	}
	for _, file := range files {
		// A device may go after it was listed.
		text, err := os.ReadFile(file)
		image := strings.TrimSpace(string(text))
		if err == nil && strings.HasPrefix(image, below+"/") && filepath.Dir(image) != below {
			found = append(found, loopDevice{name: strings.Split(file, "/")[3], image: image})
		}
	}
	return found
}

// deviceSize returns the kernel's size of the block device that is mounted on a directory.
func deviceSize(t *testing.T, directory string) int64 {
	t.Helper()
	device, err := os.Open(mountAt(t, directory).source)
	must(t, err)
	defer device.Close()
	var size uint64
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, device.Fd(), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		t.Fatalf("BLKGETSIZE64 of %s: %v", device.Name(), errno)
	}
	return int64(size)
}

// space returns the size of the file system on a directory, without its metadata.
func space(t *testing.T, directory string) int64 {
	t.Helper()
	var found unix.Statfs_t
	must(t, unix.Statfs(directory, &found))
	return int64(found.Blocks) * found.Bsize
}

// superblockSize returns the size that the superblock in an image states.
func superblockSize(t *testing.T, image string) int64 {
	t.Helper()
	file, err := os.Open(image)
	must(t, err)
	defer file.Close()
	head := make([]byte, 2048)
	_, err = file.ReadAt(head, 0)
	must(t, err)
	if string(head[:4]) == "XFSB" {
		return int64(binary.BigEndian.Uint64(head[8:])) * int64(binary.BigEndian.Uint32(head[4:]))
	}
	if ext := head[1024:]; binary.LittleEndian.Uint16(ext[56:]) == 0xEF53 {
		return int64(binary.LittleEndian.Uint32(ext[4:])) << (10 + binary.LittleEndian.Uint32(ext[24:]))
	}
	t.Fatalf("%s has no file system that this knows", image)
	return 0
}

// expectSize compares sizes in bytes.
func expectSize(t *testing.T, what string, found, expected int64) {
	t.Helper()
	if found != expected {
		t.Fatalf("%s: %d MiB, expected %d MiB", what, found/mib, expected/mib)
	}
	reached(1)
}

// expectAbout compares sizes, and allows for metadata: an eighth, and a journal of 64 MiB.
func expectAbout(t *testing.T, what string, found, expected int64) {
	t.Helper()
	if found > expected || found < expected-expected/8-64*mib {
		t.Fatalf("%s: %d MiB, expected nearly %d MiB", what, found/mib, expected/mib)
	}
	reached(1)
}
