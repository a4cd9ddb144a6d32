// Package contract runs Kubernetes' own FlexVolume plugin on the drivers of this repository.
//
// Nothing is replaced by a double: the plugin manager, the prober and the plugin are those of
// kubelet, the drivers are the installed executables, and the volumes are on loop devices.
// Kubernetes' volume testing host stands for the rest of kubelet.
package contract

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// arena is where the tests make their directories: a tmpfs that goes with the mount namespace of
// this process.
const arena = "/run/flexvol-contract"

var (
	// tests and points count the nodes (each test makes one for each driver) and the promises that
	// were checked.
	tests, points int64
	// klogged is the log of Kubernetes.
	klogged logBuffer
	// built is where cargo left the drivers.
	built = os.Getenv("FLEXVOL_BUILT")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if err := isolate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	flags := flag.NewFlagSet("klog", flag.ExitOnError)
	klog.InitFlags(flags)
	for name, value := range map[string]string{"logtostderr": "false", "stderrthreshold": "FATAL", "one_output": "true"} {
		if err := flags.Set(name, value); err != nil {
			panic(err)
		}
	}
	klog.SetOutput(&klogged)

	started := time.Now()
	code := m.Run()
	fmt.Printf("contract kubernetes %s: %d tests, %d points, %d s\n",
		os.Getenv("KUBERNETES"), tests, points, int(time.Since(started).Seconds()+0.5))
	os.Exit(code)
}

// isolate mounts a private /run and arena. It fails if other processes would see the mounts: the
// lab starts this process in a mount namespace without propagation.
func isolate() error {
	theirs := os.Getenv("FLEXVOL_OUTSIDE")
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	if theirs == "" || theirs == ours {
		return fmt.Errorf("this is everybody's mount namespace; start it with scripts/lab kubernetes contract")
	}
	if _, err := os.Stat(filepath.Join(built, "flexvol")); err != nil {
		return fmt.Errorf("FLEXVOL_BUILT: %v; scripts/lab kubernetes contract builds it", err)
	}
	remembered := []string{"/etc/flexvol/directories", "/var/lib/flexvol/directories"}
	for _, dir := range append([]string{"/run", arena}, remembered...) {
		if err := os.MkdirAll(dir, 0755); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
			return fmt.Errorf("mount a file system in memory on %s: %v", dir, err)
		}
	}
	return nil
}

// reached counts promises that were checked.
func reached(promises int64) {
	atomic.AddInt64(&points, promises)
}

// must ends the test if a step fails that is not itself under test.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
