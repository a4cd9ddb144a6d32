//go:build !kubernetes1.21

package contract

// forgetsMounts tells whether kubelet forgets what it mounted for a pod whose volume did not grow.
const forgetsMounts = true
