//go:build !kubernetes1.22

package contract

import (
	"testing"

	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/volume"
	volumetesting "k8s.io/kubernetes/pkg/volume/testing"
)

type testingHost interface {
	volume.VolumeHost
	volume.KubeletVolumeHost
}

func newTestingHost(t *testing.T, root string, client clientset.Interface) testingHost {
	return volumetesting.NewFakeVolumeHost(t, root, client, nil)
}

func mountDevice(mounter volume.DeviceMounter, spec *volume.Spec, device, directory string) error {
	return mounter.MountDevice(spec, device, directory)
}
