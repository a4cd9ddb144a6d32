//go:build kubernetes1.31

package contract

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/volume"
)

func newMounter(plugin volume.VolumePlugin, spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return plugin.NewMounter(spec, pod)
}
