package contract

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// kubelet serializes the operations on one volume, except unmounts of different pods, and without
// attach except their mounts too.
func TestPodsComeAndGoSideBySideWhileTheVolumeGrows(t *testing.T) {
	onEvery(t, func(t *testing.T, s *sandbox, d driver) {
		before := s.baseline()
		persistent, _ := d.provision("data", "xfs", 300*mib)
		k := newKubelet(s)
		spec, resident := writable(persistent), pod("resident")
		device, _ := k.stage(spec)
		directory := k.start(spec, resident)
		plugin := k.plugin(spec)

		const pods, rounds = 6, 5
		failed := make(chan error, pods*rounds*2)
		var going sync.WaitGroup
		for i := 0; i < pods; i++ {
			one := pod(fmt.Sprintf("pod-%d", i))
			going.Add(1)
			go func() {
				defer going.Done()
				for round := 0; round < rounds; round++ {
					failed <- k.setUp(spec, one)
					unmounter, err := plugin.NewUnmounter(spec.Name(), one.UID)
					if err == nil {
						err = unmounter.TearDown()
					}
					failed <- err
				}
			}()
		}
		for size := 320 * mib; size <= 480*mib; size += 32 * mib {
			must(t, k.expand(spec, device, directory, size, 300*mib))
			if d.block {
				expectSize(t, "the device", deviceSize(t, directory), size)
			}
		}
		going.Wait()
		close(failed)
		for err := range failed {
			must(t, err)
		}
		reached(pods * rounds * 2)
		must(t, os.WriteFile(filepath.Join(directory, "file"), nil, 0600))
		k.stop(spec, resident)
		k.unstage(spec)
		if d.block {
			expectSize(t, "the superblock", superblockSize(t, d.image(persistent)), 480*mib)
		}
		d.delete(persistent)
		before.expect("everybody is gone")
	})
}
