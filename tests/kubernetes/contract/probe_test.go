package contract

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/kubernetes/pkg/volume"
)

// eventually waits for the effect of a file system event.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not within five seconds: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
	reached(1)
}

// capabilities returns the plugin's capabilities from the reply to init, which it does not export.
func capabilities(t *testing.T, plugin volume.VolumePlugin) string {
	t.Helper()
	kept := reflect.ValueOf(plugin).Elem().FieldByName("capabilities")
	if !kept.IsValid() {
		t.Fatalf("%T has no capabilities", plugin)
	}
	return fmt.Sprintf("%+v", kept)
}

func TestCapabilitiesAreUnderstoodAsTheDriverMeansThem(t *testing.T) {
	expected := map[string]string{
		"without attach":  "{Attach:false SELinuxRelabel:true SupportsMetrics:true FSGroup:true RequiresFSResize:true}",
		"with attach":     "{Attach:true SELinuxRelabel:true SupportsMetrics:true FSGroup:true RequiresFSResize:true}",
		"hello-block":     "{Attach:false SELinuxRelabel:true SupportsMetrics:true FSGroup:true RequiresFSResize:true}",
		"hello-directory": "{Attach:false SELinuxRelabel:false SupportsMetrics:false FSGroup:false RequiresFSResize:true}",
	}
	onEvery(t, func(t *testing.T, s *sandbox, d driver) {
		k := newKubelet(s)
		plugin, err := k.manager.FindPluginByName(d.name)
		must(t, err)
		if found := capabilities(t, plugin); found != expected[filepath.Base(strings.ReplaceAll(t.Name(), "_", " "))] {
			t.Fatalf("kubelet understood %s", found)
		}
		if found := k.calls.names(); found != "init" {
			t.Fatalf("finding the driver ran %s", found)
		}
		reached(2)
	})
}

func TestAnUpgradedDriverTakesOverMountedVolumes(t *testing.T) {
	s := newNode(t)
	d := s.install(false, "")
	before := s.baseline()
	persistent, _ := d.provision("data", "ext4", 64*mib)
	k := newKubelet(s)
	spec, one := writable(persistent), pod("one")
	k.start(spec, one)

	// Installing the same driver again causes no event for kubelet.
	first := k.plugin(spec)
	s.install(false, "")
	time.Sleep(200 * time.Millisecond)
	if k.plugin(spec) != first {
		t.Fatal("installing the same driver again made kubelet probe it")
	}
	reached(1)

	// A different executable, which install takes for another version.
	newer, err := os.ReadFile(d.executable())
	must(t, err)
	upgrade := s.path("flexvol")
	must(t, os.WriteFile(upgrade, append(newer, 0), 0755))
	s.command(upgrade, "install", "--name", d.name, "--plugin-dir", s.plugins())
	eventually(t, "the upgraded driver is another plugin", func() bool { return k.plugin(spec) != first })
	k.stop(spec, one)
	k.start(spec, one)
	k.stop(spec, one)

	must(t, os.Remove(upgrade))
	s.command("cp", "-a", filepath.Join(built, "flexvol"), upgrade)
	s.command(upgrade, "install", "--name", d.name, "--plugin-dir", s.plugins())
	must(t, os.Remove(upgrade))
	d.delete(persistent)
	before.expect("the volume was deleted and the driver is as it was")
}

func TestADriverThatStartsToAttachIsUnderstoodWithoutARestart(t *testing.T) {
	s := newNode(t)
	d := s.install(false, "")
	persistent, _ := d.provision("data", "ext4", 64*mib)
	k := newKubelet(s)
	spec, one := writable(persistent), pod("one")
	if k.attachable(spec) != nil {
		t.Fatal("attaches already")
	}
	k.start(spec, one)
	k.stop(spec, one)
	d = s.install(true, "")
	eventually(t, "the plugin attaches", func() bool { return k.attachable(spec) != nil })
	k.stage(spec)
	k.start(spec, one)
	k.stop(spec, one)
	k.unstage(spec)
	d.delete(persistent)
}

func TestARemovedDriverIsGoneAndComesBack(t *testing.T) {
	s := newNode(t)
	d := s.install(false, "")
	persistent, _ := d.provision("data", "ext4", 64*mib)
	k := newKubelet(s)
	spec, one := writable(persistent), pod("one")
	k.start(spec, one)
	k.stop(spec, one)
	s.flexvol("uninstall", "--name", d.name, "--plugin-dir", s.plugins())
	eventually(t, "the removed driver is no plugin", func() bool {
		_, err := k.manager.FindPluginBySpec(spec)
		return err != nil
	})
	s.install(false, "")
	eventually(t, "the driver is a plugin again", func() bool {
		_, err := k.manager.FindPluginBySpec(spec)
		return err == nil
	})
	k.start(spec, one)
	k.stop(spec, one)
	d.delete(persistent)
}

func TestADriverInstalledUnderARunningKubeletIsFound(t *testing.T) {
	s := newNode(t)
	k := newKubelet(s)
	d := s.install(false, "")
	eventually(t, "the driver is found", func() bool {
		_, err := k.manager.FindPluginByName(d.name)
		return err == nil
	})
	// If kubelet had seen a half-installed driver, the failed call would be in the log.
	if said := klogged.take(); strings.Contains(said, "Failed to unmarshal") || strings.Contains(said, "skipping") {
		t.Fatalf("kubelet met half a driver:\n%s", said)
	}
	reached(1)
}

func TestABrokenNeighbourHidesTheDriverOnlyFromOldReleases(t *testing.T) {
	s := newNode(t)
	d := s.install(false, "")
	neighbour := s.path("plugins/example.com~broken")
	must(t, os.Mkdir(neighbour, 0755))
	k := newKubelet(s)
	_, err := k.manager.FindPluginByName(d.name)
	if hidden := err != nil; hidden != neighboursHide {
		t.Fatalf("hidden by its broken neighbour: %t", hidden)
	}
	reached(1)
	if !neighboursHide {
		return
	}
	// Removing the other driver does not help: kubelet probes a directory only if something changes in it.
	must(t, os.Remove(neighbour))
	time.Sleep(200 * time.Millisecond)
	if _, err := k.manager.FindPluginByName(d.name); err == nil {
		t.Fatal("found without an event of its own")
	}
	now := time.Now()
	must(t, os.Chtimes(d.executable(), now, now))
	eventually(t, "the driver is found", func() bool {
		_, err := k.manager.FindPluginByName(d.name)
		return err == nil
	})
	reached(1)
}

func TestTheVolumesNameIsAskedForOnce(t *testing.T) {
	onEvery(t, func(t *testing.T, s *sandbox, d driver) {
		k := newKubelet(s)
		for _, name := range []string{"first", "second"} {
			persistent, _ := d.provision(name, "xfs", 300*mib)
			spec, one := writable(persistent), pod("one")
			for i := 0; i < 3; i++ {
				found, err := k.plugin(spec).GetVolumeName(spec)
				if err != nil || found != name {
					t.Fatalf("kubelet calls it %q, %v", found, err)
				}
			}
			device, _ := k.stage(spec)
			directory := k.start(spec, one)
			must(t, k.expand(spec, device, directory, 320*mib, 300*mib))
			k.stop(spec, one)
			k.unstage(spec)
			d.delete(persistent)
		}
		// Not supported is remembered for all volumes of the driver, so the driver must not answer it to
		// a callout that any volume needs.
		if asked := len(k.calls.of("getvolumename")); asked != 1 {
			t.Fatalf("getvolumename ran %d times", asked)
		}
		reached(1)
	})
}
