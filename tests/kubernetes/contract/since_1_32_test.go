//go:build kubernetes1.32

package contract

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/volume/util/operationexecutor"
	volumetypes "k8s.io/kubernetes/pkg/volume/util/types"
)

// claimsTell tells whether the condition of a claim says why it did not grow.
const claimsTell = true

// generateExpand is what the controller runs where RecoverVolumeExpansionFailure is on, its default.
func generateExpand(generator operationexecutor.OperationGenerator, claim *v1.PersistentVolumeClaim, persistent *v1.PersistentVolume) (volumetypes.GeneratedOperations, error) {
	return generator.GenerateExpandAndRecoverVolumeFunc(claim, persistent, "kubernetes.io/flexvolume")
}
