package contract

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kubernetes/pkg/volume"
)

func TestEveryFileSystemGrowsUnderAPodOrSaysWhyNotAndGrowsAtTheNextMount(t *testing.T) {
	for _, attach := range []bool{false, true} {
		for _, filesystem := range []string{"xfs", "ext4", "ext3", "btrfs"} {
			s := newNode(t)
			if _, err := exec.LookPath("mkfs." + filesystem); err != nil {
				t.Fatalf("missing: mkfs.%s", filesystem)
			}
			d := s.install(attach, "")
			before := s.baseline()
			persistent, _ := d.provision("data", filesystem, 300*mib)
			k := newKubelet(s)
			spec, one := writable(persistent), pod("one")
			device, _ := k.stage(spec)
			directory := k.start(spec, one)
			if found := mountAt(t, directory).filesystem; found != filesystem {
				t.Fatalf("a %s is mounted", found)
			}
			if err := k.expand(spec, device, directory, 600*mib, 300*mib); err != nil {
				if !strings.HasPrefix(filesystem, "ext") || !strings.Contains(err.Error(), "CAP_SYS_RESOURCE") {
					t.Fatal(err)
				}
				k.stop(spec, one)
				k.unstage(spec)
				device, _ = k.stage(spec)
				k.start(spec, one)
				must(t, k.expand(spec, device, directory, 600*mib, 300*mib))
			}
			expectSize(t, "the grown device", deviceSize(t, directory), 600*mib)
			expectAbout(t, "the grown file system", space(t, directory), 600*mib)
			k.stop(spec, one)
			k.unstage(spec)
			if filesystem != "btrfs" {
				expectSize(t, "the superblock", superblockSize(t, d.image(persistent)), 600*mib)
			}
			d.delete(persistent)
			before.expect("the volume was deleted")
		}
	}
}

func TestGrowthThatFindsNoRoomFailsReadablyAndSucceedsWhenThereIs(t *testing.T) {
	for _, attach := range []bool{false, true} {
		s := newNode(t)
		d := s.install(attach, "")
		persistent, _ := d.provision("data", "xfs", 300*mib)
		k := newKubelet(s)
		spec, one := writable(persistent), pod("one")
		device, _ := k.stage(spec)
		directory := k.start(spec, one)
		filler := s.fillDisk(150 * mib)
		for i := 0; i < 2; i++ {
			err := k.expand(spec, device, directory, 600*mib, 300*mib)
			if err == nil || !strings.Contains(err.Error(), "600Mi") || strings.Contains(err.Error(), s.root) {
				t.Fatalf("no room, and kubelet reads: %v", err)
			}
			expectSize(t, "the device", deviceSize(t, directory), 300*mib)
		}
		// A pod still starts and ends.
		k.stop(spec, one)
		k.start(spec, one)
		must(t, os.Remove(filler))
		must(t, k.expand(spec, device, directory, 600*mib, 300*mib))
		expectSize(t, "the grown device", deviceSize(t, directory), 600*mib)
		expectAbout(t, "the grown file system", space(t, directory), 600*mib)
		k.stop(spec, one)
		k.unstage(spec)
		d.delete(persistent)
	}
}

// In the controller manager the plugin manager has no prober.
func TestTheControllerRaisesTheSizeWithoutAskingTheDriver(t *testing.T) {
	s := newNode(t)
	d := s.install(false, "")
	persistent, _ := d.provision("data", "xfs", 300*mib)
	k := newKubelet(s)
	controller := &volume.VolumePluginMgr{}
	must(t, controller.InitPlugins(nil, nil, newHost(t, s.kubelet(), k.client)))
	spec := writable(persistent)
	plugin, err := controller.FindExpandablePluginBySpec(spec)
	must(t, err)
	to, from := resource.MustParse("600Mi"), resource.MustParse("300Mi")
	said, err := plugin.ExpandVolumeDevice(spec, to, from)
	must(t, err)
	if said.Cmp(to) != 0 || !plugin.RequiresFSResize() {
		t.Fatalf("the controller takes it for %s", said.String())
	}
	if ran := k.calls.names(); strings.Contains(ran, "expandvolume") {
		t.Fatalf("the controller ran %s", ran)
	}
	size, err := os.Stat(d.image(persistent))
	must(t, err)
	expectSize(t, "the image", size.Size(), 300*mib)
	reached(2)
	d.delete(persistent)
}

// No controller of Kubernetes calls it, but the code does if a controller has a prober.
func TestExpandvolumeAsKubernetesWouldCallItGrowsTheStorage(t *testing.T) {
	onEvery(t, func(t *testing.T, s *sandbox, d driver) {
		persistent, _ := d.provision("data", "xfs", 300*mib)
		k := newKubelet(s)
		spec, one := writable(persistent), pod("one")
		plugin, err := k.manager.FindExpandablePluginBySpec(spec)
		must(t, err)
		_, err = plugin.ExpandVolumeDevice(spec, resource.MustParse("600Mi"), resource.MustParse("300Mi"))
		must(t, err)
		if d.block {
			size, err := os.Stat(d.image(persistent))
			must(t, err)
			expectSize(t, "the image", size.Size(), 600*mib)
		}
		device, _ := k.stage(spec)
		directory := k.start(spec, one)
		must(t, k.expand(spec, device, directory, 600*mib, 300*mib))
		if d.block {
			expectAbout(t, "the file system", space(t, directory), 600*mib)
		}
		k.stop(spec, one)
		k.unstage(spec)
		d.delete(persistent)
	})
}
