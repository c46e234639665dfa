//! Makes the kernels differentiable operations of burn, dispatched by device.

use std::fmt::Debug;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{DType, Element, Tensor, TensorData};

use half::bf16;

use crate::kernel::{
    BatchNorm, Dropout, Float, Forward, Gat, GatV2, Gather, Gine, Kernel, LayerNorm, Linear,
    RawGat, Relational, Saved, SegmentMax, Spmm, Update,
};

/// A kernel with its constants, as a differentiable operation on the device of its inputs.
#[derive(Debug)]
pub enum Fused {
    /// Batch norm.
    BatchNorm(BatchNorm),
    /// Dropout of elements.
    Dropout(Dropout),
    /// GAT's attention.
    Gat(Gat),
    /// GATv2's attention.
    GatV2(GatV2),
    /// GINE's sum of messages.
    Gine(Gine),
    /// Layer norm.
    LayerNorm(LayerNorm),
    /// A linear map of rows, or the sum of two.
    Linear(Linear),
    /// GAT's attention over raw rows, on processors alone.
    RawGat(RawGat),
    /// A kernel that only typed models use.
    Relational(Relational),
    /// The maximum over in-edges.
    SegmentMax(SegmentMax),
    /// The weighted sum over in-edges.
    Spmm(Spmm),
    /// A sum of terms with non-linearity and dropout.
    Update(Update),
}

impl Fused {
    /// Runs an operation on one matrix.
    #[must_use]
    pub fn apply(self, a: Tensor<2>) -> Tensor<2> {
        Tensor::from_dispatch(Dispatch::fused_1(Arc::new(self), a.into_dispatch()))
    }

    /// Runs an operation on two matrices.
    #[must_use]
    pub fn apply_2(self, [a, b]: [Tensor<2>; 2]) -> Tensor<2> {
        let (a, b) = (a.into_dispatch(), b.into_dispatch());
        Tensor::from_dispatch(Dispatch::fused_2(Arc::new(self), a, b))
    }

    /// Runs an operation on three matrices.
    #[must_use]
    pub fn apply_3(self, [a, b, c]: [Tensor<2>; 3]) -> Tensor<2> {
        let (a, b, c) = (a.into_dispatch(), b.into_dispatch(), c.into_dispatch());
        Tensor::from_dispatch(Dispatch::fused_3(Arc::new(self), a, b, c))
    }

    /// Runs an operation on four matrices.
    #[must_use]
    pub fn apply_4(self, [a, b, c, d]: [Tensor<2>; 4]) -> Tensor<2> {
        let (a, b) = (a.into_dispatch(), b.into_dispatch());
        let (c, d) = (c.into_dispatch(), d.into_dispatch());
        Tensor::from_dispatch(Dispatch::fused_4(Arc::new(self), a, b, c, d))
    }
}

/// Expands to a match that calls one method of the kernel inside.
macro_rules! on_kernel {
    ($op:expr, $kernel:ident => $call:expr) => {{
        use $crate::ops::Fused;
        match $op {
            Fused::BatchNorm($kernel) => $call,
            Fused::Dropout($kernel) => $call,
            Fused::Gat($kernel) => $call,
            Fused::GatV2($kernel) => $call,
            Fused::Gine($kernel) => $call,
            Fused::LayerNorm($kernel) => $call,
            Fused::Linear($kernel) => $call,
            Fused::RawGat($kernel) => $call,
            Fused::Relational($kernel) => $call,
            Fused::SegmentMax($kernel) => $call,
            Fused::Spmm($kernel) => $call,
            Fused::Update($kernel) => $call,
        }
    }};
}
#[cfg(feature = "gpu")]
pub(crate) use on_kernel;

/// Routes a fused operation to the backend its tensors live on.
#[backend_extension(Autodiff, Flex, Cube: cfg(feature = "gpu"))]
pub(crate) trait FusedOps: Backend {
    /// Runs `op` on one matrix and returns a matrix.
    fn fused_1(op: Arc<Fused>, a: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Runs `op` on two matrices and returns a matrix.
    fn fused_2(op: Arc<Fused>, a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Runs `op` on three matrices and returns a matrix.
    fn fused_3(
        op: Arc<Fused>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// Runs `op` on four matrices and returns a matrix.
    fn fused_4(
        op: Arc<Fused>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

/// A backend that the kernels are written for: Flex on CPUs, and Cube on GPUs (`crate::gpu`).
pub(crate) trait FusedKernels: Backend {
    /// Values that a forward pass keeps for the backward pass.
    type Saved: Clone + Debug + Send + 'static;

    /// Runs `op` forward.
    fn fused_forward(op: &Fused, inputs: &[FloatTensor<Self>]) -> (FloatTensor<Self>, Self::Saved);

    /// Returns the gradients of the inputs; an input that is not needed may have none.
    fn fused_backward(
        op: &Fused,
        inputs: &[FloatTensor<Self>],
        saved: &Self::Saved,
        grad: FloatTensor<Self>,
        needed: &[bool],
    ) -> Vec<Option<FloatTensor<Self>>>;
}

/// Implements the operations, without gradients, for a backend that has kernels.
macro_rules! implement_ops {
    ($backend:ty) => {
        impl FusedOps for $backend {
            fn fused_1(op: Arc<Fused>, a: FloatTensor<Self>) -> FloatTensor<Self> {
                Self::fused_forward(&op, &[a]).0
            }

            fn fused_2(
                op: Arc<Fused>,
                a: FloatTensor<Self>,
                b: FloatTensor<Self>,
            ) -> FloatTensor<Self> {
                Self::fused_forward(&op, &[a, b]).0
            }

            fn fused_3(
                op: Arc<Fused>,
                a: FloatTensor<Self>,
                b: FloatTensor<Self>,
                c: FloatTensor<Self>,
            ) -> FloatTensor<Self> {
                Self::fused_forward(&op, &[a, b, c]).0
            }

            fn fused_4(
                op: Arc<Fused>,
                a: FloatTensor<Self>,
                b: FloatTensor<Self>,
                c: FloatTensor<Self>,
                d: FloatTensor<Self>,
            ) -> FloatTensor<Self> {
                Self::fused_forward(&op, &[a, b, c, d]).0
            }
        }
    };
}

implement_ops!(Flex);
#[cfg(feature = "gpu")]
implement_ops!(burn_cubecl::CubeBackend);

/// [`Saved`] in the number type of the tensors.
#[derive(Clone, Debug)]
pub(crate) enum FlexSaved {
    F32(Arc<Saved<f32>>),
    F64(Arc<Saved<f64>>),
}

/// A number type that Flex tensors can hold.
trait FlexFloat: Float + Element + bytemuck::Pod {
    fn wrap(saved: Saved<Self>) -> FlexSaved;
    fn unwrap(saved: &FlexSaved) -> &Saved<Self>;
}

impl FlexFloat for f32 {
    fn wrap(saved: Saved<f32>) -> FlexSaved {
        FlexSaved::F32(Arc::new(saved))
    }

    fn unwrap(saved: &FlexSaved) -> &Saved<f32> {
        let FlexSaved::F32(saved) = saved else {
            panic!("the forward pass did not run in f32")
        };
        saved
    }
}

impl FlexFloat for f64 {
    fn wrap(saved: Saved<f64>) -> FlexSaved {
        FlexSaved::F64(Arc::new(saved))
    }

    fn unwrap(saved: &FlexSaved) -> &Saved<f64> {
        let FlexSaved::F64(saved) = saved else {
            panic!("the forward pass did not run in f64")
        };
        saved
    }
}

impl FusedKernels for Flex {
    type Saved = FlexSaved;

    fn fused_forward(op: &Fused, inputs: &[FlexTensor]) -> (FlexTensor, FlexSaved) {
        if inputs.iter().any(|input| input.dtype() == DType::BF16) {
            return gather_bf16(op, inputs);
        }
        match inputs[0].dtype() {
            DType::F32 => forward::<f32>(op, inputs),
            DType::F64 => forward::<f64>(op, inputs),
            other => panic!("models run in f32 or f64, not {other:?}"),
        }
    }

    fn fused_backward(
        op: &Fused,
        inputs: &[FlexTensor],
        saved: &FlexSaved,
        grad: FlexTensor,
        needed: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        match saved {
            FlexSaved::F32(_) => backward::<f32>(op, inputs, saved, &grad, needed),
            FlexSaved::F64(_) => backward::<f64>(op, inputs, saved, &grad, needed),
        }
    }
}

fn contiguous(inputs: &[FlexTensor]) -> Vec<FlexTensor> {
    inputs.iter().map(FlexTensor::to_contiguous).collect()
}

fn slice<F: Element + bytemuck::Pod>(tensor: &FlexTensor) -> &[F] {
    tensor
        .as_slice::<F>()
        .expect("the tensor was made contiguous")
}

fn forward<F: FlexFloat>(op: &Fused, inputs: &[FlexTensor]) -> (FlexTensor, FlexSaved) {
    let inputs = contiguous(inputs);
    let slices: Vec<&[F]> = inputs.iter().map(slice).collect();
    output(on_kernel!(op, kernel => kernel.forward::<F>(&slices)))
}

fn output<F: FlexFloat>(done: Forward<F>) -> (FlexTensor, FlexSaved) {
    let shape = [done.out.len() / done.cols, done.cols];
    (
        FlexTensor::from_data(TensorData::new(done.out, shape)),
        F::wrap(done.saved),
    )
}

/// Runs an operation that gathers rows of 16 bits.
fn gather_bf16(op: &Fused, inputs: &[FlexTensor]) -> (FlexTensor, FlexSaved) {
    match op {
        Fused::Gat(kernel) => gather_rows(kernel, inputs),
        Fused::GatV2(kernel) => gather_rows(kernel, inputs),
        Fused::Gine(kernel) => gather_rows(kernel, inputs),
        Fused::SegmentMax(kernel) => gather_rows(kernel, inputs),
        Fused::Spmm(kernel) => gather_rows(kernel, inputs),
        Fused::Relational(Relational::DotScores(kernel)) => gather_rows(kernel, inputs),
        Fused::Relational(Relational::HeadSum(kernel)) => gather_rows(kernel, inputs),
        other => panic!("only aggregations read rows in 16 bits, not {other:?}"),
    }
}

fn gather_rows<K: Gather>(kernel: &K, inputs: &[FlexTensor]) -> (FlexTensor, FlexSaved) {
    let inputs = contiguous(inputs);
    let x = slice::<bf16>(&inputs[K::GATHERED]);
    let other = |(at, input)| match at {
        _ if at == K::GATHERED => &[],
        _ => slice::<f32>(input),
    };
    let others: Vec<&[f32]> = inputs.iter().enumerate().map(other).collect();
    output(kernel.gather(x, &others))
}

fn backward<F: FlexFloat>(
    op: &Fused,
    inputs: &[FlexTensor],
    saved: &FlexSaved,
    grad: &FlexTensor,
    needed: &[bool],
) -> Vec<Option<FlexTensor>> {
    let (inputs, grad) = (contiguous(inputs), grad.to_contiguous());
    let slices: Vec<&[F]> = inputs.iter().map(slice).collect();
    let (saved, grad) = (F::unwrap(saved), slice::<F>(&grad));
    let grads = on_kernel!(op, kernel => kernel.backward(&slices, saved, grad, needed));
    let wrap = |(input, values): (&FlexTensor, Vec<F>)| {
        let shape = input.layout().shape().clone();
        let shape = if values.is_empty() { [0].into() } else { shape };
        Some(FlexTensor::from_data(TensorData::new(values, shape)))
    };
    inputs.iter().zip(grads).map(wrap).collect()
}

impl<B: FusedKernels + FusedOps, C: CheckpointStrategy> FusedOps for Autodiff<B, C> {
    fn fused_1(op: Arc<Fused>, a: FloatTensor<Self>) -> FloatTensor<Self> {
        tracked::<B, C, 1>(op, [a])
    }

    fn fused_2(op: Arc<Fused>, a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        tracked::<B, C, 2>(op, [a, b])
    }

    fn fused_3(
        op: Arc<Fused>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        tracked::<B, C, 3>(op, [a, b, c])
    }

    fn fused_4(
        op: Arc<Fused>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        tracked::<B, C, 4>(op, [a, b, c, d])
    }
}

#[derive(Debug)]
struct FusedBackward;

type State<B> = (Arc<Fused>, Vec<FloatTensor<B>>, <B as FusedKernels>::Saved);

impl<B: FusedKernels, const N: usize> Backward<B, N> for FusedBackward {
    type State = State<B>;

    fn backward(
        self,
        ops: Ops<State<B>, N>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let grad = grads.consume::<B>(&ops.node);
        let (op, inputs, saved) = ops.state;
        let needed = ops.parents.each_ref().map(Option::is_some);
        let of_inputs = B::fused_backward(&op, &inputs, &saved, grad, &needed);
        for (parent, of_input) in ops.parents.into_iter().zip(of_inputs) {
            if let (Some(parent), Some(of_input)) = (parent, of_input) {
                grads.register::<B>(parent.id, of_input);
            }
        }
    }
}

fn tracked<B: FusedKernels, C: CheckpointStrategy, const N: usize>(
    op: Arc<Fused>,
    inputs: [FloatTensor<Autodiff<B, C>>; N],
) -> FloatTensor<Autodiff<B, C>> {
    let nodes = inputs.each_ref().map(|input| input.node());
    let inputs: Vec<_> = inputs
        .into_iter()
        .map(|input| input.into_primitive())
        .collect();
    let (out, saved) = B::fused_forward(&op, &inputs);
    match Backward::<B, N>::prepare::<C>(FusedBackward, nodes)
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prepared) => prepared.finish((op, inputs, saved), out),
        OpsKind::UnTracked(prepared) => prepared.finish(out),
    }
}
