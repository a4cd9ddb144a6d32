package contract

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const mib = int64(1) << 20

// sandbox is the environment of one test: a pool on a small file system of its own, kubelet's
// plugin directory and kubelet's root directory.
type sandbox struct {
	t    *testing.T
	root string
}

func newSandbox(t *testing.T) *sandbox {
	t.Helper()
	root, err := os.MkdirTemp(arena, "node-")
	must(t, err)
	s := &sandbox{t: t, root: root}
	klogged.take()
	t.Cleanup(s.undo)
	for _, dir := range []string{s.disk(), s.plugins(), s.kubelet()} {
		must(t, os.Mkdir(dir, 0755))
	}
	image := s.path("pool.img")
	must(t, os.WriteFile(image, nil, 0600))
	must(t, os.Truncate(image, 4096*mib))
	s.command("mkfs.ext4", "-q", "-F", "-m0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1", image)
	s.command("mount", "-o", "loop", image, s.disk())
	s.flexvol("pool", "init", s.pool())
	return s
}

func (s *sandbox) path(name string) string { return filepath.Join(s.root, name) }
func (s *sandbox) disk() string            { return s.path("disk") }
func (s *sandbox) pool() string            { return s.path("disk/pool") }
func (s *sandbox) plugins() string         { return s.path("plugins") }
func (s *sandbox) kubelet() string         { return s.path("kubelet") }

// command runs a program that must succeed, and returns its output.
func (s *sandbox) command(name string, arguments ...string) []byte {
	s.t.Helper()
	var complaints strings.Builder
	command := exec.Command(name, arguments...)
	command.Stderr = &complaints
	output, err := command.Output()
	if err != nil {
		s.t.Fatalf("%s %v: %v\n%s%s", name, arguments, err, output, complaints.String())
	}
	return output
}

// flexvol runs a verb for people.
func (s *sandbox) flexvol(arguments ...string) []byte {
	s.t.Helper()
	return s.command(filepath.Join(built, "flexvol"), arguments...)
}

// fillDisk fills the pool's disk with a foreign file, except for so many bytes.
func (s *sandbox) fillDisk(leave int64) string {
	s.t.Helper()
	var space unix.Statfs_t
	must(s.t, unix.Statfs(s.disk(), &space))
	filler, err := os.Create(s.path("disk/somebody-else"))
	must(s.t, err)
	defer filler.Close()
	must(s.t, unix.Fallocate(int(filler.Fd()), 0, 0, int64(space.Bavail)*space.Bsize-leave))
	return filler.Name()
}

// undo removes whatever a test left, in an order that works.
func (s *sandbox) undo() {
	if s.t.Failed() {
		s.t.Logf("Kubernetes logged:\n%s", klogged.take())
	}
	mounted := mounts(s.root)
	for i := len(mounted) - 1; i >= 0; i-- {
		if err := unix.Unmount(mounted[i].point, 0); err != nil {
			s.t.Errorf("unmount %s: %v; detaching it", mounted[i].point, err)
			_ = unix.Unmount(mounted[i].point, unix.MNT_DETACH)
		}
	}
	if len(mounts(s.root)) > 0 {
		s.t.Errorf("still mounted, so it stays: %s", s.root)
		return
	}
	// The directories go with this process's mount namespace: before 1.36 a prober never ends, and
	// recreates the plugin directory when that is removed.
	must(s.t, os.Remove(s.path("pool.img")))
}

// baseline has one line for everything that a volume can leave on the machine.
type baseline struct {
	s     *sandbox
	lines []string
}

func (s *sandbox) baseline() baseline {
	s.t.Helper()
	return baseline{s: s, lines: s.everything()}
}

// expect waits until the machine looks as before: a loop device goes a moment after its last user.
func (b baseline) expect(when string) {
	b.s.t.Helper()
	before := strings.Join(b.lines, "\n")
	deadline := time.Now().Add(3 * time.Second)
	for {
		now := strings.Join(b.s.everything(), "\n")
		if now == before {
			reached(1)
			return
		}
		if time.Now().After(deadline) {
			b.s.t.Fatalf("%s, and the machine is not as before:\n%s\nbefore:\n%s", when, now, before)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// kept matches the directories that kubelet makes above those of volumes and removes in its own
// housekeeping.
var kept = regexp.MustCompile(`^kubelet(/(pods(/[^/]+(/volumes(/[^/]+)?)?)?|plugins(/kubernetes.io(/flexvolume(/[^/]+(/[^/]+(/mounts)?)?)?)?)?))?$`)

func (s *sandbox) everything() []string {
	s.t.Helper()
	var lines []string
	for _, mount := range mounts("/") {
		lines = append(lines, fmt.Sprintf("mount %s %s on %s", mount.device, mount.filesystem, mount.point))
	}
	for _, device := range loops(s.root) {
		lines = append(lines, "loop on "+device.image)
	}
	must(s.t, filepath.Walk(s.root, func(path string, info os.FileInfo, err error) error {
		name, _ := filepath.Rel(s.root, path)
		if err == nil && !kept.MatchString(name) {
			lines = append(lines, fmt.Sprintf("%s %s", info.Mode(), name))
		}
		return err
	}))
	disk, err := os.Open(s.disk())
	must(s.t, err)
	defer disk.Close()
	must(s.t, unix.Syncfs(int(disk.Fd())))
	var space unix.Statfs_t
	must(s.t, unix.Fstatfs(int(disk.Fd()), &space))
	lines = append(lines, fmt.Sprintf("%d blocks and %d inodes free", space.Bfree, space.Ffree))
	sort.Strings(lines)
	return lines
}
