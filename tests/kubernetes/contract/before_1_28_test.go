//go:build !kubernetes1.28

package contract

import (
	"k8s.io/kubernetes/pkg/kubelet/volumemanager/cache"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/util/operationexecutor"
)

func constructVolumeSpec(plugin volume.VolumePlugin, name, directory string) (*volume.Spec, error) {
	return plugin.ConstructVolumeSpec(name, directory)
}

func markAttached(world cache.ActualStateOfWorld, request operationexecutor.VolumeToMount) error {
	return world.MarkVolumeAsAttached(request.VolumeName, request.VolumeSpec, nodeName, request.DevicePath)
}
