package contract

import (
	"os"
	"path/filepath"
	"testing"
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
