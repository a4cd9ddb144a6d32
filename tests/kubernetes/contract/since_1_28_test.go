//go:build kubernetes1.28

package contract

import (
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/volumemanager/cache"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/util/operationexecutor"
)

func constructVolumeSpec(plugin volume.VolumePlugin, name, directory string) (*volume.Spec, error) {
	found, err := plugin.ConstructVolumeSpec(name, directory)
	return found.Spec, err
}

func markAttached(world cache.ActualStateOfWorld, request operationexecutor.VolumeToMount) error {
	return world.MarkVolumeAsAttached(klog.Background(), request.VolumeName, request.VolumeSpec, nodeName, request.DevicePath)
}
