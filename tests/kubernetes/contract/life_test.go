package contract

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/kubernetes/pkg/volume"
)

// onEvery runs a test in a sandbox of its own for each kind of driver.
func onEvery(t *testing.T, test func(*testing.T, *sandbox, driver)) {
	for _, kind := range kinds {
		kind := kind
		t.Run(kind.name, func(t *testing.T) {
			s := newNode(t)
			test(t, s, kind.install(s))
		})
	}
}

// newNode is newSandbox, and counts the test.
func newNode(t *testing.T) *sandbox {
	t.Helper()
	tests++
	return newSandbox(t)
}

func TestAVolumeLivesItsLifeAndLeavesNothing(t *testing.T) {
	onEvery(t, func(t *testing.T, s *sandbox, d driver) {
		before := s.baseline()
		persistent, _ := d.provision("data", "xfs", 300*mib)
		k := newKubelet(s)
		spec, one := writable(persistent), pod("one")

		device, global := k.stage(spec)
		directory := k.start(spec, one)
		if d.block {
			expectSize(t, "the device", deviceSize(t, directory), 300*mib)
			expectAbout(t, "the file system", space(t, directory), 300*mib)
		}
		must(t, os.WriteFile(filepath.Join(directory, "file"), []byte("kept"), 0600))

		// kubelet expands while the pod runs. A directory volume always sees its whole file system.
		must(t, k.expand(spec, device, directory, 600*mib, 300*mib))
		if d.block {
			expectSize(t, "the grown device", deviceSize(t, directory), 600*mib)
			expectAbout(t, "the grown file system", space(t, directory), 600*mib)
		}
		// Once more, because every node of a shared volume expands it.
		must(t, k.expand(spec, device, directory, 600*mib, 300*mib))

		k.stop(spec, one)
		k.unstage(spec)
		if d.block {
			expectSize(t, "the superblock", superblockSize(t, d.image(persistent)), 600*mib)
		}

		two := pod("two")
		_, again := k.stage(spec)
		if again != global {
			t.Fatalf("staged on %s, before on %s", again, global)
		}
		directory = k.start(spec, two)
		content, err := os.ReadFile(filepath.Join(directory, "file"))
		if err != nil || string(content) != "kept" {
			t.Fatalf("the file has %q, %v", content, err)
		}
		reached(1)
		k.stop(spec, two)
		k.unstage(spec)
		d.delete(persistent)
		before.expect("the volume was deleted")
	})
}

// kubelet's metrics of a volume (kubelet_volume_stats_*) are the statfs of a pod's directory, where the driver's init
// says that this describes the volume.
func TestKubeletMeasuresVolumesThatHaveAFileSystemOfTheirOwn(t *testing.T) {
	onEvery(t, func(t *testing.T, s *sandbox, d driver) {
		persistent, _ := d.provision("data", "xfs", 300*mib)
		k := newKubelet(s)
		spec, one := writable(persistent), pod("one")
		device, _ := k.stage(spec)
		directory := k.start(spec, one)
		mounter, err := newMounter(k.plugin(spec), spec, one)
		must(t, err)
		for _, size := range []int64{300 * mib, 600 * mib} {
			must(t, k.expand(spec, device, directory, size, 300*mib))
			measured, err := mounter.GetMetrics()
			if !d.block {
				if !volume.IsNotSupported(err) {
					t.Fatalf("a directory was measured: %v, %v", measured, err)
				}
				continue
			}
			must(t, err)
			var found unix.Statfs_t
			must(t, unix.Statfs(directory, &found))
			expectSize(t, "the capacity", measured.Capacity.Value(), space(t, directory))
			expectAbout(t, "the capacity", measured.Capacity.Value(), size)
			expectSize(t, "the inodes", measured.Inodes.Value(), int64(found.Files))
		}
		reached(1)
		k.stop(spec, one)
		k.unstage(spec)
		d.delete(persistent)
	})
}
