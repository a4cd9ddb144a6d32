//go:build !kubernetes1.24

package contract

import (
	"k8s.io/apimachinery/pkg/api/resource"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/kubelet/volumemanager/cache"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/util/operationexecutor"
	volumetypes "k8s.io/kubernetes/pkg/volume/util/types"
	"k8s.io/kubernetes/pkg/volume/util/volumepathhandler"
)

// neighboursHide tells whether a driver that fails its init hides the others: kubelet discards
// everything that it found in the same probe.
const neighboursHide = true

func newOperationGenerator(client clientset.Interface, manager *volume.VolumePluginMgr, recorder record.EventRecorder) operationexecutor.OperationGenerator {
	return operationexecutor.NewOperationGenerator(client, manager, recorder, false, volumepathhandler.NewBlockVolumePathHandler())
}

// The claim's previous size comes from its status.
func generateExpandInUse(generator operationexecutor.OperationGenerator, request operationexecutor.VolumeToMount, world cache.ActualStateOfWorld, _ resource.Quantity) (volumetypes.GeneratedOperations, error) {
	return generator.GenerateExpandInUseVolumeFunc(request, world)
}
