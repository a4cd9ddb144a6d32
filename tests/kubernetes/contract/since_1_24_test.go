//go:build kubernetes1.24

package contract

import (
	"reflect"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/kubelet/volumemanager/cache"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/util/operationexecutor"
	volumetypes "k8s.io/kubernetes/pkg/volume/util/types"
	"k8s.io/kubernetes/pkg/volume/util/volumepathhandler"
)

// neighboursHide tells whether a driver that fails its init hides the others.
const neighboursHide = false

func newOperationGenerator(client clientset.Interface, manager *volume.VolumePluginMgr, recorder record.EventRecorder) operationexecutor.OperationGenerator {
	return operationexecutor.NewOperationGenerator(client, manager, recorder, volumepathhandler.NewBlockVolumePathHandler())
}

func generateExpandInUse(generator operationexecutor.OperationGenerator, request operationexecutor.VolumeToMount, world cache.ActualStateOfWorld, from resource.Quantity) (volumetypes.GeneratedOperations, error) {
	size := request.VolumeSpec.PersistentVolume.Spec.Capacity[v1.ResourceStorage]
	// The field got another name between 1.25 and 1.28.
	for _, name := range []string{"DesiredPersistentVolumeSize", "PersistentVolumeSize"} {
		if field := reflect.ValueOf(&request).Elem().FieldByName(name); field.IsValid() {
			field.Set(reflect.ValueOf(size))
		}
	}
	return generator.GenerateExpandInUseVolumeFunc(request, world, from)
}
